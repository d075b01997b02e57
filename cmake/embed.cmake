# Two lives. Included by CMakeLists.txt: eventide_embed(TARGET) adds the freestanding headers to TARGET as
# one table (jit/sources.h), so that a binary carries its kernel sources. Run as a script (cmake -P with
# OUTPUT, ROOT and FILES, names separated by |): writes that table.
if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.25)
  string(REPLACE "|" ";" FILES "${FILES}")
  set(table "// Made by cmake/embed.cmake.\n#include \"jit/sources.h\"\n\nnamespace eventide {\n\n")
  string(APPEND table "const EmbeddedSource kEmbeddedSources[] = {\n")
  foreach(file ${FILES})
    file(READ ${ROOT}/${file} text)
    # Compilers must take string literals of 64 KiB; headers are far below.
    string(APPEND table "    {\"${file}\", R\"evt_text(${text})evt_text\"},\n")
  endforeach()
  string(APPEND table "    {nullptr, nullptr}};\n\n}  // namespace eventide\n")
  file(WRITE ${OUTPUT} "${table}")
  return()
endif()

set(EVENTIDE_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(eventide_embed target)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} device/*.h device/arch/*.h
    device/arch/*.cuh ops/*.h schedulers/*_device.h)
  list(FILTER files EXCLUDE REGEX "port_example")
  list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE paths)
  set(output ${PROJECT_BINARY_DIR}/generated/embedded_sources.cc)
  list(JOIN files "|" list)
  add_custom_command(OUTPUT ${output} DEPENDS ${paths} ${EVENTIDE_EMBED_SCRIPT} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DROOT=${PROJECT_SOURCE_DIR} "-DFILES=${list}"
      -P ${EVENTIDE_EMBED_SCRIPT})
  target_sources(${target} PRIVATE ${output})
endfunction()
