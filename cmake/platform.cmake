# Refuses, by name, what the library does not run on (docs/platforms.md). src/base/sys.h refuses the same for those who
# compile without CMake.
set(hr_supported "headrace runs on Linux, on 64-bit little-endian machines; see docs/platforms.md")
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "${CMAKE_SYSTEM_NAME} is not supported: ${hr_supported}")
elseif(NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  message(FATAL_ERROR "32-bit ${CMAKE_SYSTEM_PROCESSOR} is not supported: ${hr_supported}")
elseif(CMAKE_C_BYTE_ORDER STREQUAL "BIG_ENDIAN")
  message(FATAL_ERROR "big-endian ${CMAKE_SYSTEM_PROCESSOR} is not supported: ${hr_supported}")
elseif(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64|aarch64|arm64)$")
  message(WARNING "headrace was never tried on ${CMAKE_SYSTEM_PROCESSOR}: run the tests before you rely on it")
endif()
