# What release builds are compiled and linked with against exploitation of mistakes. Whatever the compiler does not
# know is left out; tools/check_hardening.py looks at the built files. Sanitizers bring checks of their own instead.
option(HEADRACE_HARDENING "harden release builds" ON)
if(NOT HEADRACE_HARDENING OR HEADRACE_SANITIZE OR HEADRACE_TSAN OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  return()
endif()

include(CheckCCompilerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)

foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER "HAVE${flag}" known)
  check_c_compiler_flag(${flag} ${known})
  if(${known})
    add_compile_options(${flag})
  endif()
endforeach()

# Level 3 also checks sizes that are known at run time only; compilers before gcc 12 and clang 9 stop at 2. Some
# distributions define it in the compiler, so it is undefined first. Without optimization it has no effect.
check_c_compiler_flag("-O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -Werror" HAVE_FORTIFY_FLAGS)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 12)
  set(fortify_level 2)
else()
  set(fortify_level 3)
endif()
if(HAVE_FORTIFY_FLAGS)
  add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${fortify_level})
endif()

add_link_options(-Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
