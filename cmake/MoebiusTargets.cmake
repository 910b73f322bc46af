# SPDX-License-Identifier: Apache-2.0
# One verb per kind of target. A target per folder, its doors are its DEPS.

# Everything of one kind: `programs` for ./dev build, `benches` for ./dev bench.
add_custom_target(programs)
add_custom_target(benches)

# Sanitized trees build what their tests need, and no more.
function(moebius_only_on_demand name)
  if(MOEBIUS_SANITIZE AND MOEBIUS_TEST_LABELS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
  endif()
endfunction()

# moebius_library(name SOURCES a.cc … HEADERS a.h … [DEPS target …])
# Every header is also compiled alone, which proves that it includes what it needs.
function(moebius_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPS" ${ARGN})
  set(units ${ARG_SOURCES})
  foreach(header IN LISTS ARG_HEADERS)
    string(MAKE_C_IDENTIFIER "${header}" id)
    set(unit "${CMAKE_CURRENT_BINARY_DIR}/self_contained/${name}_${id}.cc")
    file(RELATIVE_PATH path "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/${header}")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "#include \"${path}\"\n" @ONLY)
    list(APPEND header_units "${unit}")
  endforeach()
  if(NOT units)
    set(units ${header_units})
    set(header_units "")
  endif()
  add_library(${name} STATIC ${units})
  target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  target_compile_options(${name} PRIVATE ${MOEBIUS_SANITIZE_FLAGS})
  moebius_only_on_demand(${name})
  if(header_units AND MOEBIUS_BUILD_TESTS AND NOT MOEBIUS_SANITIZE)
    add_library(${name}_self_contained OBJECT ${header_units})
    target_include_directories(${name}_self_contained PRIVATE "${CMAKE_SOURCE_DIR}")
    target_link_libraries(${name}_self_contained PRIVATE ${ARG_DEPS})
    target_compile_options(${name}_self_contained PRIVATE -fsyntax-only)
  endif()
endfunction()

# moebius_proto(name [GRPC] PROTOS path/from/proto.proto … [DEPS name …])
# Generated messages (and services with GRPC) as one library, never sanitised and without warnings.
# Included as "proto/path/from/proto.pb.h".
function(moebius_proto name)
  cmake_parse_arguments(ARG "GRPC" "" "PROTOS;DEPS" ${ARGN})
  set(generated "${CMAKE_BINARY_DIR}/generated")
  set(options "--cpp_out=${generated}")
  set(guests protobuf::libprotobuf)
  if(ARG_GRPC)
    list(APPEND options "--grpc_out=${generated}"
         "--plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>")
    list(APPEND guests gRPC::grpc++)
  endif()
  foreach(proto IN LISTS ARG_PROTOS)
    string(REGEX REPLACE "[.]proto$" "" stem "proto/${proto}")
    set(outputs "${generated}/${stem}.pb.cc" "${generated}/${stem}.pb.h")
    if(ARG_GRPC)
      list(APPEND outputs "${generated}/${stem}.grpc.pb.cc" "${generated}/${stem}.grpc.pb.h")
    endif()
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${generated}"
      COMMAND protobuf::protoc -I "${CMAKE_SOURCE_DIR}" ${options}
              "${CMAKE_SOURCE_DIR}/proto/${proto}"
      DEPENDS "${CMAKE_SOURCE_DIR}/proto/${proto}"
      COMMENT "Generating proto/${proto}" VERBATIM)
    list(APPEND units ${outputs})
  endforeach()
  # Generates all sources without compiling them: what a checker of other sources needs.
  if(NOT TARGET moebius_generated)
    add_custom_target(moebius_generated)
  endif()
  add_custom_target(${name}_generated DEPENDS ${units})
  add_dependencies(moebius_generated ${name}_generated)
  add_library(${name} STATIC ${units})
  add_dependencies(${name} ${name}_generated)
  target_include_directories(${name} SYSTEM PUBLIC "${generated}")
  target_link_libraries(${name} PUBLIC ${guests} ${ARG_DEPS})
  target_compile_options(${name} PRIVATE -w)
  moebius_only_on_demand(${name})
endfunction()

# moebius_binary(name SOURCES … DEPS … [OUTPUT file-name])
function(moebius_binary name)
  cmake_parse_arguments(ARG "" "OUTPUT" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  target_compile_options(${name} PRIVATE ${MOEBIUS_SANITIZE_FLAGS})
  if(ARG_OUTPUT)
    set_target_properties(${name} PROPERTIES
      OUTPUT_NAME "${ARG_OUTPUT}" RUNTIME_OUTPUT_DIRECTORY "${MOEBIUS_PROGRAM_DIR}")
    moebius_only_on_demand(${name})
    # The older kind of run path: libraries that a package brings need each other too.
    target_link_options(${name} PRIVATE -Wl,--disable-new-dtags)
    if(NOT MOEBIUS_SANITIZE)
      install(TARGETS ${name} RUNTIME DESTINATION bin)
    endif()
    add_dependencies(programs ${name})
    set_property(GLOBAL APPEND PROPERTY MOEBIUS_PROGRAMS "${ARG_OUTPUT}")
  endif()
endfunction()

# moebius_in_tree(variable labels…): whether a test with these labels belongs to this tree.
function(moebius_in_tree variable)
  set(${variable} FALSE PARENT_SCOPE)
  if(NOT MOEBIUS_TEST_LABELS)
    set(${variable} TRUE PARENT_SCOPE)
  endif()
  foreach(label IN LISTS ARGN)
    if(label IN_LIST MOEBIUS_TEST_LABELS)
      set(${variable} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# moebius_add_test(name COMMAND … [LABELS …] [TIMEOUT s] [ENVIRONMENT …]): a ctest entry of a tree
# that has one of the labels. Exit code 77 is a skip whose reason is printed as "MOEBIUS_SKIP: …".
function(moebius_add_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  moebius_in_tree(in_tree ${ARG_LABELS})
  if(NOT in_tree)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES
    LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "${ARG_ENVIRONMENT}")
  if(ARG_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# moebius_test(name SOURCES … DEPS … [LABELS unit …] [SHARDS n] [TIMEOUT s])
# One binary per room; SHARDS splits it over ctest's workers.
function(moebius_test name)
  cmake_parse_arguments(ARG "" "SHARDS;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  moebius_binary(${name} SOURCES ${ARG_SOURCES}
                 DEPS ${ARG_DEPS} moebius_test_main GTest::gmock GTest::gtest)
  target_compile_definitions(${name} PRIVATE MOEBIUS_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                             MOEBIUS_BINARY_DIR="${CMAKE_BINARY_DIR}")
  moebius_in_tree(in_tree ${ARG_LABELS})
  if(NOT in_tree)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    return()
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(test_name "${name}")
    if(ARG_SHARDS GREATER 1)
      set(test_name "${name}.${shard}")
    endif()
    moebius_add_test(${test_name} COMMAND ${name} LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS}" "GTEST_SHARD_INDEX=${shard}"
                  "GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/results/${test_name}.xml")
  endforeach()
endfunction()

# moebius_python_test(name SCRIPT f.py [ARGS …] [LABELS tools] [TIMEOUT s]): a script whose exit
# code is the result.
function(moebius_python_test name)
  cmake_parse_arguments(ARG "SERIAL" "SCRIPT;TIMEOUT" "ARGS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS tools)
  endif()
  set(serial "")
  if(ARG_SERIAL)
    set(serial SERIAL)
  endif()
  moebius_add_test(${name} ${serial} LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT}
    COMMAND python3 "${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT}" ${ARG_ARGS}
    ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1" "PYTHONPATH=${CMAKE_SOURCE_DIR}/tools"
                "MOEBIUS_SOURCE_DIR=${CMAKE_SOURCE_DIR}" "MOEBIUS_BINARY_DIR=${CMAKE_BINARY_DIR}"
                "MOEBIUS_PROGRAM_DIR=${MOEBIUS_PROGRAM_DIR}")
endfunction()

# moebius_bench(name SOURCES … DEPS …): a Google Benchmark binary.
function(moebius_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  moebius_binary(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} benchmark::benchmark)
  add_dependencies(benches ${name})
endfunction()

# moebius_fuzz(name SOURCE f.cc CORPUS dir DEPS …): the entry point `LLVMFuzzerTestOneInput` of
# f.cc as a libFuzzer target where the fuzz preset builds it, and as an ordinary test that runs the
# seed corpus everywhere else.
function(moebius_fuzz name)
  cmake_parse_arguments(ARG "" "SOURCE;CORPUS" "DEPS" ${ARGN})
  if(MOEBIUS_BUILD_FUZZ)
    moebius_binary(${name} SOURCES ${ARG_SOURCE} DEPS ${ARG_DEPS})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  elseif(MOEBIUS_BUILD_TESTS)
    moebius_binary(${name} SOURCES ${ARG_SOURCE} "${CMAKE_SOURCE_DIR}/tests/fuzz/run_corpus.cc"
                   DEPS ${ARG_DEPS})
    moebius_in_tree(in_tree unit)
    if(NOT in_tree)
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    endif()
    moebius_add_test(${name} LABELS unit
                     COMMAND ${name} "${CMAKE_CURRENT_SOURCE_DIR}/${ARG_CORPUS}")
  endif()
endfunction()
