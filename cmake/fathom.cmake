# How things are added to the build. A module's CMakeLists.txt names its sources, its tests and its
# fuzzers; nothing is found by globbing.

# Where the tests look for the tree's data; a relative path makes programs that can be taken along.
set(FATHOM_TEST_DIR ${CMAKE_SOURCE_DIR} CACHE STRING "root of the tree at run time of the tests")
set(FATHOM_DATA_DIR ${CMAKE_BINARY_DIR}/data CACHE STRING
    "extracted archives of tests/data at run time of the tests")

# Without cmocka, with BUILD_TESTING off, or for fuzzing, tests are declared and not built.
if(BUILD_TESTING AND CMOCKA_FOUND AND NOT FATHOM_FUZZ)
    set(FATHOM_TESTS ON)
else()
    set(FATHOM_TESTS OFF)
endif()

# The time limit of every test, in seconds. It ends what hangs: nothing else takes so long, however
# slow or busy the machine is.
set(FATHOM_HANG_S 1200)

# fathom_data(archive folder) - an archive of tests/data (tools/pack_data), extracted into `folder` of
# the build; a changed one is extracted at the next configure
function(fathom_data archive folder)
    set(path ${CMAKE_SOURCE_DIR}/tests/data/${archive})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(ARCHIVE_EXTRACT INPUT ${path} DESTINATION ${CMAKE_BINARY_DIR}/${folder})
endfunction()

# fathom_module(name SOURCES a.c b.c DEPENDS base ... LINK external ...)
# One static library fathom_<name>. DEPENDS are the modules it may use (docs/architecture.md).
function(fathom_module name)
    cmake_parse_arguments(M "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
    add_library(fathom_${name} STATIC ${M_SOURCES})
    list(TRANSFORM M_DEPENDS PREPEND fathom_)
    target_link_libraries(fathom_${name} PUBLIC ${M_DEPENDS} ${M_LINK})
    set_property(GLOBAL APPEND PROPERTY FATHOM_MODULES ${name})
endfunction()

# fathom_test(name SOURCES file.c ... DEPENDS base ... [LABELS unit] [ARGS ...])
# A cmocka program tests/<name>, run by CTest as <name>. Sources are relative to tests/. Labels
# golden, e2e and load mark tests of the whole model: `make test` runs them in the release build, of
# which it builds what they need (the target model_tests); load: the sanitizers' builds run it too.
# `make test-long` runs those labelled long.
function(fathom_test name)
    cmake_parse_arguments(T "" "" "SOURCES;DEPENDS;LINK;LABELS;ARGS" ${ARGN})
    list(TRANSFORM T_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/tests/)
    list(TRANSFORM T_DEPENDS PREPEND fathom_)
    add_executable(${name} ${T_SOURCES})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE ${T_DEPENDS} ${T_LINK}
        $<TARGET_NAME_IF_EXISTS:PkgConfig::CMOCKA>)
    target_compile_definitions(${name} PRIVATE FATHOM_SOURCE_DIR="${FATHOM_TEST_DIR}"
        FATHOM_DATA_DIR="${FATHOM_DATA_DIR}")
    if(NOT FATHOM_TESTS)
        set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
        return()
    endif()
    add_test(NAME ${name} COMMAND ${name} ${T_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    if(NOT T_LABELS)
        set(T_LABELS unit)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${FATHOM_HANG_S})
    fathom_model_test(${name} "${T_LABELS}")
endfunction()

# fathom_case(name program label arguments...) - a test's program, run with other arguments
function(fathom_case name program label)
    if(NOT FATHOM_TESTS)
        return()
    endif()
    add_test(NAME ${name} COMMAND ${program} ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT ${FATHOM_HANG_S}
        SKIP_RETURN_CODE 77)
    fathom_model_test(${program} "${label}")
endfunction()

# fathom_model_test(target labels) - a target that tests of the whole model run is in model_tests
function(fathom_model_test target labels)
    if(labels MATCHES "golden|e2e|load")
        set_property(GLOBAL APPEND PROPERTY FATHOM_MODEL_TESTS ${target})
    endif()
endfunction()

# fathom_script(name target script label arguments...)
#
# A test of a program by a script of tests/, which is given the arguments and the program's path. It
# skips by ending with 77.
function(fathom_script name target script label)
    if(NOT TARGET ${target})
        return()
    endif()
    add_test(NAME ${name}
        COMMAND ${CMAKE_SOURCE_DIR}/tests/${script} ${ARGN} $<TARGET_FILE:${target}>
        WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name}
        PROPERTIES LABELS ${label} TIMEOUT ${FATHOM_HANG_S} SKIP_RETURN_CODE 77)
    fathom_model_test(${target} ${label})
endfunction()

# fathom_fuzz(name SOURCES fuzz_x.c DEPENDS ...)
# tests/fuzz/<name>: LLVMFuzzerTestOneInput over outside bytes. Every build makes a driver that
# replays tests/fuzz/corpus/<name>/ (CTest label fuzz); with FATHOM_FUZZ it is a libFuzzer program.
function(fathom_fuzz name)
    cmake_parse_arguments(F "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
    list(TRANSFORM F_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/tests/fuzz/)
    list(TRANSFORM F_DEPENDS PREPEND fathom_)
    add_executable(${name} EXCLUDE_FROM_ALL ${F_SOURCES})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE ${F_DEPENDS} ${F_LINK})
    target_compile_definitions(${name} PRIVATE FATHOM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    set_property(GLOBAL APPEND PROPERTY FATHOM_FUZZERS ${name})
    if(FATHOM_FUZZ)
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    else()
        target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.c)
        if(FATHOM_TESTS)
            set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL OFF)
            add_test(NAME ${name} COMMAND ${name} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
            set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT ${FATHOM_HANG_S})
        endif()
    endif()
endfunction()

# fathom_bench(name SOURCES bench/x.c ... DEPENDS ...)
# bench/<name>: a program that prints figures. Not built by default; the target `benches` has all.
# Sources are relative to the root.
function(fathom_bench name)
    cmake_parse_arguments(B "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
    list(TRANSFORM B_SOURCES PREPEND ${CMAKE_SOURCE_DIR}/)
    list(TRANSFORM B_DEPENDS PREPEND fathom_)
    add_executable(${name} EXCLUDE_FROM_ALL ${B_SOURCES})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE ${B_DEPENDS} ${B_LINK})
    target_compile_definitions(${name} PRIVATE FATHOM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    set_property(GLOBAL APPEND PROPERTY FATHOM_BENCHES ${name})
endfunction()

# fathom_group(name property) - the target `name`: every program that the property lists
function(fathom_group name property)
    get_property(programs GLOBAL PROPERTY ${property})
    add_custom_target(${name})
    if(programs)
        add_dependencies(${name} ${programs})
    endif()
endfunction()

# fathom_library(target OUTPUT_NAME x WITHOUT modules ...)
# One archive of all modules but those named.
function(fathom_library target)
    cmake_parse_arguments(L "" "OUTPUT_NAME" "WITHOUT" ${ARGN})
    get_property(modules GLOBAL PROPERTY FATHOM_MODULES)
    list(REMOVE_ITEM modules ${L_WITHOUT})
    add_library(${target} STATIC)
    foreach(module ${modules})
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:fathom_${module}>)
    endforeach()
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${L_OUTPUT_NAME} LINKER_LANGUAGE C
        ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()
