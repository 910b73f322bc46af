# SPDX-License-Identifier: Apache-2.0
# Languages, flags and switches that hold for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
# Programs find the libraries that a package brings beside them, wherever it is unpacked.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")

option(MOEBIUS_BUILD_TESTS "Build the tests" ON)
option(MOEBIUS_BUILD_BENCH "Build the benchmarks" ON)
option(MOEBIUS_BUILD_FUZZ "Build libFuzzer targets (clang)" OFF)
option(MOEBIUS_CHECKS "Check internal invariants, in every build type" ON)
set(MOEBIUS_SANITIZE "" CACHE STRING "Sanitizers of this tree: empty, address, thread or fuzz")
set(MOEBIUS_PROGRAM_DIR "${CMAKE_BINARY_DIR}/bin" CACHE PATH "Where the programs are linked to")
set(MOEBIUS_TEST_LABELS "" CACHE STRING
    "Only tests with one of these labels belong to this tree; empty means all")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# -O2 -g1 without NDEBUG games: invariants follow MOEBIUS_CHECKS alone.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++ 12 gives clang its <expected> and ranges only under the later standard.
  set(CMAKE_CXX_STANDARD 23)
  add_compile_options(-Wthread-safety -Werror=thread-safety)
endif()

# NUMERICS: contraction would change bits from one compiler or target to the next.
add_compile_options(-ffp-contract=off -fno-math-errno -Wall -Wextra -Werror=return-type
                    -Wno-unused-parameter -Wno-missing-field-initializers)
if(MOEBIUS_CHECKS)
  add_compile_definitions(MOEBIUS_CHECKS=1)
endif()

# Sanitizer flags are applied by the target verbs, so that generated code stays without them.
if(MOEBIUS_SANITIZE STREQUAL "address")
  set(MOEBIUS_SANITIZE_FLAGS -fsanitize=address,undefined
      -fno-sanitize=vptr,null,alignment,object-size -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
elseif(MOEBIUS_SANITIZE STREQUAL "thread")
  set(MOEBIUS_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
  add_compile_definitions(MOEBIUS_THREAD_SANITIZER=1)
elseif(MOEBIUS_SANITIZE STREQUAL "fuzz")
  set(MOEBIUS_SANITIZE_FLAGS -fsanitize=fuzzer-no-link,address,undefined
      -fno-sanitize=vptr,null,alignment,object-size -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
elseif(MOEBIUS_SANITIZE)
  message(FATAL_ERROR "MOEBIUS_SANITIZE is '${MOEBIUS_SANITIZE}'; use address, thread or fuzz")
endif()
if(MOEBIUS_SANITIZE_FLAGS)
  add_link_options(${MOEBIUS_SANITIZE_FLAGS})
endif()

# Used where they are, never needed: a cache and a faster linker.
find_program(MOEBIUS_CCACHE ccache)
if(MOEBIUS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_NOHASHDIR=1
      "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" "${MOEBIUS_CCACHE}")
endif()
find_program(MOEBIUS_LLD ld.lld)
if(MOEBIUS_LLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=lld)
endif()
