# `cmake --install`: the program, the libraries, the headers (each where its includes look for it), and
# a package, so that find_package(Eventide) gives Eventide::eventide.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

add_library(eventide_all INTERFACE)
target_link_libraries(eventide_all INTERFACE eventide_serve eventide_jit)
set_target_properties(eventide_all PROPERTIES EXPORT_NAME eventide)
add_library(Eventide::eventide ALIAS eventide_all)

get_property(folders DIRECTORY PROPERTY eventide_folders)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Eventide)
install(TARGETS eventide_all eventide_dependencies ${folders} EXPORT EventideTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT EventideTargets NAMESPACE Eventide:: DESTINATION ${package})
if(TARGET eventide)
  install(TARGETS eventide RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(folder core device ops schedulers jit runtime formats text models serve stress)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/eventide
    FILES_MATCHING PATTERN "*.h")
endforeach()

configure_package_config_file(cmake/EventideConfig.cmake.in
  ${PROJECT_BINARY_DIR}/generated/EventideConfig.cmake INSTALL_DESTINATION ${package})
# Before 1.0 a minor version may change anything.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/EventideConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/EventideConfig.cmake
  ${PROJECT_BINARY_DIR}/generated/EventideConfigVersion.cmake DESTINATION ${package})
