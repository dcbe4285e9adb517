# Units: up to eight files of a target are compiled as one, which takes half as long from nothing. A
# build folder remembers in build/units.cmake which files it compiles together. A file that is
# edited later gets an object of its own and keeps it, so that the next edit compiles that file
# alone: `./dev build` writes such files into build/own_objects.txt. A file that is new has its own
# from the start, and no unit changes with it.
set(_units_file ${CMAKE_BINARY_DIR}/units.cmake)
set(_own_objects_file ${CMAKE_BINARY_DIR}/own_objects.txt)
set(RETORT_UNITS_KNOWN OFF)
if(CMAKE_UNITY_BUILD AND EXISTS ${_units_file})
  include(${_units_file})
  set(RETORT_UNITS_KNOWN ON)
endif()
if(NOT EXISTS ${_own_objects_file})
  file(TOUCH ${_own_objects_file}) # without it every build would begin with CMake
endif()
file(STRINGS ${_own_objects_file} RETORT_OWN_OBJECTS)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_own_objects_file})

# retort_form_units(target [SIZE n]): says which files of the target are compiled together. To be
# called once its sources are known.
function(retort_form_units target)
  cmake_parse_arguments(U "" "SIZE" "" ${ARGN})
  if(NOT CMAKE_UNITY_BUILD)
    return()
  endif()
  if(NOT U_SIZE)
    set(U_SIZE 8)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)

  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "[.]cc$")
  set(position 0)
  foreach(source ${sources})
    get_source_file_property(skipped ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(skipped)
      continue()
    endif()
    get_filename_component(path ${source} ABSOLUTE)
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${path})

    # The first configuration forms the units, in the order of the sources; later ones keep them.
    set(key RETORT_UNIT_${target}/${path})
    set(unit "")
    if(NOT RETORT_UNITS_KNOWN)
      math(EXPR unit "${position} / ${U_SIZE}")
      math(EXPR position "${position} + 1")
      set_property(GLOBAL APPEND_STRING PROPERTY RETORT_UNITS "set(${key} ${unit})\n")
    elseif(DEFINED ${key})
      set(unit ${${key}})
    endif()
    if(NOT unit STREQUAL "" AND NOT path IN_LIST RETORT_OWN_OBJECTS)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${unit})
    endif()
  endforeach()
endfunction()

# To be called once all targets are known.
function(retort_keep_units)
  if(CMAKE_UNITY_BUILD AND NOT RETORT_UNITS_KNOWN)
    get_property(units GLOBAL PROPERTY RETORT_UNITS)
    file(WRITE ${CMAKE_BINARY_DIR}/units.cmake "${units}")
  endif()
endfunction()
