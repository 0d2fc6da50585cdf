# What src/device/kernel_image.c takes into the library: the GPU kernels as PTX, which lies in the tree and which every
# driver can translate, and with nvcc also as fatbins of finished code, so that nothing has to be translated when they are
# loaded. The code is made from that PTX, so both are one program, and no host compiler that nvcc likes is needed.
set(HEADRACE_NVCC AUTO CACHE STRING "finished code of the GPU kernels: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE HEADRACE_NVCC PROPERTY STRINGS AUTO ON OFF)

set(HEADRACE_KERNEL_SOURCES)
set(kernel_files)
set(kernel_definitions)
set(nvcc_version 0)

if(HEADRACE_NVCC)
  find_program(HEADRACE_NVCC_PROGRAM nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda)
  if(HEADRACE_NVCC_PROGRAM)
    execute_process(COMMAND ${HEADRACE_NVCC_PROGRAM} --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
    if(nvcc_says MATCHES "release ([0-9.]+),")
      set(nvcc_version ${CMAKE_MATCH_1})
    endif()
  endif()
  if(nvcc_version VERSION_LESS 11.8 AND NOT HEADRACE_NVCC STREQUAL "AUTO") # the first one that knows sm_90
    message(FATAL_ERROR "HEADRACE_NVCC=${HEADRACE_NVCC}: no nvcc of CUDA 11.8 or later was found; set "
                        "HEADRACE_NVCC_PROGRAM, or HEADRACE_NVCC=OFF to use the PTX of the tree")
  endif()
endif()

foreach(kernel place cast)
  set(kernel_ptx ${CMAKE_SOURCE_DIR}/src/device/kernels/${kernel}.ptx)
  string(TOUPPER ${kernel} kernel_name)
  list(APPEND kernel_files ${kernel_ptx})
  list(APPEND kernel_definitions "HR_${kernel_name}_PTX=\"${kernel_ptx}\"")
  if(nvcc_version VERSION_GREATER_EQUAL 11.8)
    set(kernel_fatbin ${CMAKE_BINARY_DIR}/${kernel}.fatbin)
    add_custom_command(
      OUTPUT ${kernel_fatbin}
      COMMAND ${HEADRACE_NVCC_PROGRAM} -fatbin -gencode arch=compute_75,code=sm_80 -gencode arch=compute_75,code=sm_90
              -gencode arch=compute_75,code=compute_75 -o ${kernel_fatbin} ${kernel_ptx}
      DEPENDS ${kernel_ptx} VERBATIM)
    list(APPEND kernel_files ${kernel_fatbin})
    list(APPEND HEADRACE_KERNEL_SOURCES ${kernel_fatbin}) # of the library, so that make knows who makes it
    list(APPEND kernel_definitions "HR_${kernel_name}_FATBIN=\"${kernel_fatbin}\"")
  endif()
endforeach()

set_source_files_properties(src/device/kernel_image.c PROPERTIES OBJECT_DEPENDS "${kernel_files}"
                            COMPILE_DEFINITIONS "${kernel_definitions}")
