# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=… -DOBJECTS=a.o,b.o,… -P check_tier_symbols.cmake
# A tier's object may define no weak or unique symbol: the linker would be free to hand a copy that
# is compiled for one instruction set to every file of the program.
string(REPLACE "," ";" objects "${OBJECTS}")
foreach(object IN LISTS objects)
  execute_process(COMMAND "${NM}" --demangle --defined-only "${object}"
                  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" shared "${symbols}")
  if(shared)
    message(FATAL_ERROR "${object} defines symbols that other files may be linked to:\n${shared}")
  endif()
  if(NOT symbols MATCHES "moebius::")
    message(FATAL_ERROR "${object}: no symbols found, nothing was checked")
  endif()
endforeach()
