// The library that carries the precompiled headers (CMakeLists.txt). It has no content.
