# generated/version.h: the project's version and what git says of the checkout, both as of configuring. It is
# rewritten only when its text changes and read by one source, so a new commit makes no build stale.
set(checkout "")
find_program(EVENTIDE_GIT git)
get_filename_component(above ${PROJECT_SOURCE_DIR} DIRECTORY)
if(EVENTIDE_GIT)
  # Sources that were unpacked inside somebody else's checkout are not of it.
  execute_process(COMMAND ${CMAKE_COMMAND} -E env GIT_CEILING_DIRECTORIES=${above}
      ${EVENTIDE_GIT} -C ${PROJECT_SOURCE_DIR} describe --always --tags --dirty
    OUTPUT_VARIABLE checkout OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/version/generated/version.h @ONLY CONTENT
"// Made by cmake/version.cmake.
#pragma once

namespace eventide {

inline constexpr char kVersion[] = \"@PROJECT_VERSION@\", kCheckout[] = \"@checkout@\";

}  // namespace eventide
")
target_include_directories(eventide PRIVATE ${PROJECT_BINARY_DIR}/version)
