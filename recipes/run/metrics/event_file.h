// TensorBoard event files: the record framing (length, masked CRC-32C) and the one kind of event we
// write, scalars.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "recipes/run/metrics/patient_files.h"

namespace retort::recipes {

// CRC-32C (Castagnoli) of the bytes, and the rotated form that the record format stores.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

// One record: length (8 bytes, little endian), its masked CRC, the data, the data's masked CRC.
std::string event_record(std::string_view data);

// A protobuf Event with the scalars of one step. wall_time: seconds since 1970.
std::string scalar_event(double wall_time, int64_t step,
                         std::span<const std::pair<std::string, double>> scalars);
// The first event of every file.
std::string version_event(double wall_time);

// Appends events to a new file `events.out.tfevents.<time>.<host>.<pid>` in `folder` (created if
// needed); each event is one write(2). Errors and full disks: those of PatientFile.
class EventFile {
 public:
  explicit EventFile(const std::filesystem::path& folder);
  void write(int64_t step, std::span<const std::pair<std::string, double>> scalars);
  // Writes what waits for room. Whether nothing waits any more.
  bool flush() { return file_.flush(); }
  int64_t num_waiting() const { return file_.num_waiting(); }  // events
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  PatientFile file_;
};

// Rewrites every event file of `folder` without the events of steps above `step`. A record that is
// cut short or whose checksum is wrong ends its file. A missing folder is left missing.
void cut_back_events(const std::filesystem::path& folder, int64_t step);

}  // namespace retort::recipes
