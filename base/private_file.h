// Files that hold a secret, which nobody but their owner is to read.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace retort {

// What a file with a user's secret holds. kInvalidArgument, naming the file: it cannot be opened,
// or it is this user's and others may read or write it (its mode has bits of 077), as ssh refuses a
// key. Not asked of somebody else's file, nor of one on a file system that is mounted read-only, as
// Kubernetes and Docker mount theirs: nobody here can change its mode.
std::string read_private_file(const std::filesystem::path& path);

// The same of one that Retort has written: it gets its mode 0600 back where it has lost it, as in a
// volume with fsGroup, whose files Kubernetes opens to the group at each mount. A file system that
// keeps no modes (SMB, exFAT) refuses nothing: a warning says it.
std::string read_own_private_file(const std::filesystem::path& path);

// As write_file_atomically(), with mode 0600 from the first moment on; with that warning.
void write_private_file(const std::filesystem::path& path, std::string_view content);

}  // namespace retort
