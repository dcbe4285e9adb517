// A folder seen through a page cache of its own, as another host sees it by NFS before version 4.2.
#pragma once

#include <sys/types.h>

#include <filesystem>

namespace retort::test {

// A FUSE file system that passes everything on to `folder`, mounted on `mountpoint` for the thread
// that made it, the threads and processes that this one starts later, and nobody else. The kernel
// writes back what it has cached (FUSE_WRITEBACK_CACHE): whole pages, of which it reads first what
// is not written. Space cannot be reserved (no fallocate), and a file that is opened shows what is
// there then. A process of its own serves it.
class CachingMount {
 public:
  // Aborts the test's process if something fails that available() has seen working.
  CachingMount(const std::filesystem::path& folder, std::filesystem::path mountpoint);
  ~CachingMount();
  CachingMount(const CachingMount&) = delete;

  // Whether this process may mount such file systems: it needs root and /dev/fuse. The calling
  // thread gets mounts of its own.
  static bool available();
  const std::filesystem::path& path() const { return mountpoint_; }

  // From now on the file system does not answer, as NFS whose server is gone; or it does again.
  void stall() const;
  void resume() const;

 private:
  std::filesystem::path mountpoint_;
  pid_t server_ = -1;
};

}  // namespace retort::test
