# cmake -DCARGO= -DMANIFEST= -DTARGET_DIR= -DOUTPUT= -P build.cmake Builds the crate and copies the
# library, holding a lock: other build trees may share the target directory.
file(MAKE_DIRECTORY ${TARGET_DIR})
file(LOCK ${TARGET_DIR}/retort.lock GUARD PROCESS TIMEOUT 3600)
execute_process(
  COMMAND
    ${CARGO} build --release --locked --quiet --manifest-path ${MANIFEST} --target-dir ${TARGET_DIR}
  RESULT_VARIABLE failed
)
if(failed)
  message(FATAL_ERROR "cargo could not build ${MANIFEST}")
endif()
configure_file(${TARGET_DIR}/release/libretort_text.a ${OUTPUT} COPYONLY)
file(TOUCH ${OUTPUT}) # newer than the sources even if cargo had nothing to do
