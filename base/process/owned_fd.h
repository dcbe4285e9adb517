// A file descriptor that closes itself.
#pragma once

namespace retort {

class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() { reset(); }
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;

  int get() const { return fd_; }  // -1: none
  int release();                   // whoever takes it closes it
  void reset();

 private:
  int fd_ = -1;
};

}  // namespace retort
