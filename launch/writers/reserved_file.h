// A small file that is replaced again and again, on a full disk too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace retort::launch {

// Readers find a whole file, the old one or the new one. The disk is not waited for, as by
// replace_file.
//
// Room is kept in two files beside it, `<path>.spare` and `<path>.spare2`. Where the disk has no
// other, the first one is written and changes places with the file, whose room then is the next
// spare; the second one stands in for the first time, whose old file has no such room. Of a file
// system that cannot reserve, or exchange names, as NFS before 4.2, a full disk is an error.
// Threads: one at a time.
class ReservedFile {
 public:
  explicit ReservedFile(std::filesystem::path path);
  // Errors as replace_file: kResourceExhausted if no room is kept, or too little.
  void replace(std::string_view content);
  // Gives the spare room back; for the end.
  void release();

 private:
  void keep_room(uint64_t bytes);
  void use_room(std::string_view content);

  const std::filesystem::path path_, spare_, second_;
  uint64_t room_ = 0;           // bytes of each spare; 0: there is none
  bool has_second_ = false;     // besides the first
  bool can_reserve_ = true;     // as far as is known
  bool path_has_room_ = false;  // the file itself has been a spare
};

}  // namespace retort::launch
