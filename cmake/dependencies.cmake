# Libraries Eventide uses. Abseil is linked from its .a files, so that one binary runs on machines that
# have none of this installed.
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(absl REQUIRED)

function(eventide_static_abseil)
  get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target ${imported})
    if(target MATCHES "^absl::")
      foreach(property IMPORTED_LOCATION IMPORTED_LOCATION_NONE IMPORTED_LOCATION_RELEASE)
        get_target_property(location ${target} ${property})
        # Two ifs: the condition's ${CMAKE_MATCH_1} would be that of the match before.
        if(location MATCHES "^(.*)\\.so(\\.[0-9.]*)?$")
          if(EXISTS "${CMAKE_MATCH_1}.a")
            set_target_properties(${target} PROPERTIES ${property} "${CMAKE_MATCH_1}.a")
          endif()
        endif()
      endforeach()
    endif()
  endforeach()
endfunction()
eventide_static_abseil()

find_library(EVENTIDE_UTF8PROC NAMES libutf8proc.a utf8proc REQUIRED)

add_library(eventide_dependencies INTERFACE)
target_link_libraries(eventide_dependencies INTERFACE absl::status absl::statusor absl::strings
  absl::str_format absl::flat_hash_map absl::span nlohmann_json::nlohmann_json
  $<BUILD_INTERFACE:${EVENTIDE_UTF8PROC}> $<INSTALL_INTERFACE:utf8proc> Threads::Threads ${CMAKE_DL_LIBS})
target_compile_features(eventide_dependencies INTERFACE cxx_std_20)
set_target_properties(eventide_dependencies PROPERTIES EXPORT_NAME dependencies)
