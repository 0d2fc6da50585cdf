# What `cmake --install` puts where: component "headrace" is all of the library and the command. Nothing that is
# installed holds an absolute path, so --prefix may differ from the one that was configured, and trees can be moved.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY include/headrace TYPE INCLUDE COMPONENT headrace FILES_MATCHING PATTERN "*.h")
install(TARGETS headrace_shared headrace_static EXPORT headraceTargets
        LIBRARY COMPONENT headrace NAMELINK_COMPONENT headrace ARCHIVE COMPONENT headrace
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

file(RELATIVE_PATH HEADRACE_PC_TO_PREFIX /${pkgconfig_dir} /)
string(REGEX REPLACE "/$" "" HEADRACE_PC_TO_PREFIX "${HEADRACE_PC_TO_PREFIX}")
configure_file(cmake/headrace.pc.in headrace.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/headrace.pc DESTINATION ${pkgconfig_dir} COMPONENT headrace)

configure_package_config_file(cmake/headraceConfig.cmake.in headraceConfig.cmake INSTALL_DESTINATION ${package_dir}
                              NO_SET_AND_CHECK_MACRO)
# While the major version is 0, minor versions may break the API.
write_basic_package_version_file(headraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/headraceConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/headraceConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT headrace)
install(EXPORT headraceTargets NAMESPACE headrace:: DESTINATION ${package_dir} COMPONENT headrace)

foreach(section 1 3)
  file(GLOB pages CONFIGURE_DEPENDS docs/man/*.${section})
  install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT headrace)
endforeach()

if(HEADRACE_CLI)
  install(TARGETS headrace_cli RUNTIME COMPONENT headrace)
  install(FILES completions/headrace.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME headrace COMPONENT headrace)
  install(FILES completions/_headrace DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT headrace)
endif()
