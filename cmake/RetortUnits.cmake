# Units: up to eight files of a target are compiled as one, which takes half as long from nothing. A
# build folder remembers in build/units.cmake which files it compiles together. A file that is
# edited later gets an object of its own and keeps it, so that the next edit compiles that file
# alone: `./dev build` writes such files into build/own_objects.txt. A file that is new has its own
# from the start, and no unit changes with it.
#
# A unit is a file of ours that includes its members by their paths from the root of the sources.
# CMake's own units name them from the root of the file system, so that a compiler's cache would
# know nothing of what another clone compiled.
set(RETORT_UNITY ${CMAKE_UNITY_BUILD})
set(CMAKE_UNITY_BUILD OFF)
set(_units_file ${CMAKE_BINARY_DIR}/units.cmake)
set(_own_objects_file ${CMAKE_BINARY_DIR}/own_objects.txt)
set(RETORT_UNITS_KNOWN OFF)
if(RETORT_UNITY AND EXISTS ${_units_file})
  include(${_units_file})
  set(RETORT_UNITS_KNOWN ON)
endif()
if(NOT EXISTS ${_own_objects_file})
  file(TOUCH ${_own_objects_file}) # without it every build would begin with CMake
endif()
file(STRINGS ${_own_objects_file} RETORT_OWN_OBJECTS)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_own_objects_file})

# retort_form_units(target [SIZE n]): says which files of the target are compiled together, once its
# folder is read. A file with flags of its own is compiled alone.
function(retort_form_units target)
  cmake_parse_arguments(U "" "SIZE" "" ${ARGN})
  if(NOT U_SIZE)
    set(U_SIZE 8)
  endif()
  if(RETORT_UNITY)
    # A deferred call reads variables when it runs, hence the text with their values.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL _retort_form_units ${target} ${U_SIZE})")
  endif()
endfunction()

function(_retort_has_own_flags source result)
  set(${result} OFF PARENT_SCOPE)
  foreach(property SKIP_UNITY_BUILD_INCLUSION COMPILE_OPTIONS COMPILE_DEFINITIONS)
    get_source_file_property(value ${source} ${property})
    if(value)
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

function(_retort_form_units target size)
  get_target_property(sources ${target} SOURCES)
  set(kept ${sources})
  list(FILTER sources INCLUDE REGEX "[.]cc$")
  set(position 0)
  set(units "")
  foreach(source ${sources})
    _retort_has_own_flags(${source} alone)
    if(alone)
      continue()
    endif()
    get_filename_component(path ${source} ABSOLUTE)
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${path})

    # The first configuration forms the units, in the order of the sources; later ones keep them.
    set(key RETORT_UNIT_${target}/${path})
    set(unit "")
    if(NOT RETORT_UNITS_KNOWN)
      math(EXPR unit "${position} / ${size}")
      math(EXPR position "${position} + 1")
      set_property(GLOBAL APPEND_STRING PROPERTY RETORT_UNITS "set(${key} ${unit})\n")
    elseif(DEFINED ${key})
      set(unit ${${key}})
    endif()
    if(NOT unit STREQUAL "" AND NOT path IN_LIST RETORT_OWN_OBJECTS)
      list(APPEND units ${unit})
      list(APPEND files_${unit} ${source})
      string(APPEND members_${unit} "#include \"${path}\"\n")
      list(REMOVE_ITEM kept ${source})
    endif()
  endforeach()

  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  list(REMOVE_DUPLICATES units)
  foreach(unit ${units})
    list(LENGTH files_${unit} count)
    if(count EQUAL 1)
      list(APPEND kept ${files_${unit}})
      continue()
    endif()
    set(file ${CMAKE_CURRENT_BINARY_DIR}/units/${target}_${unit}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${members_${unit}}" @ONLY)
    list(APPEND kept ${file})
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${kept}")
endfunction()

# To be called at the end; it waits for all targets' units.
function(retort_keep_units)
  if(RETORT_UNITY AND NOT RETORT_UNITS_KNOWN)
    cmake_language(DEFER CALL _retort_keep_units)
  endif()
endfunction()

function(_retort_keep_units)
  get_property(units GLOBAL PROPERTY RETORT_UNITS)
  file(WRITE ${CMAKE_BINARY_DIR}/units.cmake "${units}")
endfunction()
