# cmake -DBUILD=... -DSOURCE=... -DVERSION=... -P check.cmake: installs the built tree below itself,
# builds a program against what was installed and runs it.
set(work ${BUILD}/tests/install)
file(REMOVE_RECURSE ${work})
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    string(JOIN " " command ${ARGV})
    message(FATAL_ERROR "${command}: ${status}\n${text}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix --strip)
run(${CMAKE_COMMAND} -S ${SOURCE}/tests/install -B ${work}/build -G ${GENERATOR}
  -DCMAKE_PREFIX_PATH=${work}/prefix -DWANTED_VERSION=${VERSION} -DCMAKE_CXX_COMPILER=${COMPILER})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)
if(NOT text STREQUAL "cpu, 2 workers\n")
  message(FATAL_ERROR "the consumer printed ${text}")
endif()
# A later minor version is another interface.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/tests/install -B ${work}/later -G ${GENERATOR}
  -DCMAKE_PREFIX_PATH=${work}/prefix -DWANTED_VERSION=99.0 -DCMAKE_CXX_COMPILER=${COMPILER}
  RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
if(status EQUAL 0)
  message(FATAL_ERROR "version 99.0 was found")
endif()
file(REMOVE_RECURSE ${work})
