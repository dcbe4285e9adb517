# The libraries of other projects. Those of the distribution are linked as archives where those are
# installed, so that the program runs on machines that do not have the libraries (docs/package.md).
option(RETORT_STATIC_LIBRARIES "link archives of third-party libraries where there are any" ON)

# retort_prefer_archive(variable name): sets a cache variable that find_library would set, to
# lib<name>.a if that is installed. A build folder of an earlier configuration changes with it.
function(retort_prefer_archive variable name)
  find_library(RETORT_ARCHIVE_${name} lib${name}.a)
  mark_as_advanced(RETORT_ARCHIVE_${name})
  if(RETORT_STATIC_LIBRARIES AND RETORT_ARCHIVE_${name})
    set(${variable} ${RETORT_ARCHIVE_${name}} CACHE FILEPATH "the archive of ${name}" FORCE)
  elseif("${${variable}}" STREQUAL "${RETORT_ARCHIVE_${name}}")
    unset(${variable} CACHE) # chosen here earlier; the find_library that follows chooses again
  endif()
endfunction()

retort_prefer_archive(OPENSSL_CRYPTO_LIBRARY crypto)
retort_prefer_archive(OPENSSL_SSL_LIBRARY ssl)
retort_prefer_archive(ZLIB_LIBRARY z)
retort_prefer_archive(ZLIB_LIBRARY_RELEASE z) # what a build folder of before may have found
retort_prefer_archive(RETORT_XXHASH xxhash)
retort_prefer_archive(RETORT_ZSTD_LIBRARY zstd)
retort_prefer_archive(RETORT_PCRE2_LIBRARY pcre2-8)
retort_prefer_archive(RETORT_YAML yaml-cpp)

find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(ZLIB REQUIRED)
find_package(cereal REQUIRED)
# Here, as the tests link launch, which names it.
find_package(CLI11 REQUIRED)
find_library(RETORT_XXHASH xxhash REQUIRED)
# The package of yaml-cpp 0.7 knows its shared library alone.
if(RETORT_YAML)
  add_library(yaml-cpp STATIC IMPORTED GLOBAL)
  set_target_properties(yaml-cpp PROPERTIES IMPORTED_LOCATION ${RETORT_YAML})
else()
  find_package(yaml-cpp REQUIRED)
endif()
