#include "tests/support/caching_mount.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace retort::test {
namespace fs = std::filesystem;
namespace {

constexpr uint32_t kMaxWrite = 128 << 10;

fuse_attr fuse_attributes(const struct stat& info) {
  fuse_attr attr{};
  attr.ino = info.st_ino;
  attr.size = static_cast<uint64_t>(info.st_size);
  attr.blocks = static_cast<uint64_t>(info.st_blocks);
  attr.atime = static_cast<uint64_t>(info.st_atim.tv_sec);
  attr.mtime = static_cast<uint64_t>(info.st_mtim.tv_sec);
  attr.ctime = static_cast<uint64_t>(info.st_ctim.tv_sec);
  attr.atimensec = static_cast<uint32_t>(info.st_atim.tv_nsec);
  attr.mtimensec = static_cast<uint32_t>(info.st_mtim.tv_nsec);
  attr.ctimensec = static_cast<uint32_t>(info.st_ctim.tv_nsec);
  attr.mode = info.st_mode;
  attr.nlink = static_cast<uint32_t>(info.st_nlink);
  attr.blksize = 4096;
  return attr;
}

// One request: its header, and what follows it.
struct FuseRequest {
  const fuse_in_header& head;
  std::string_view body;

  template <class T>
  const T& as() const {
    return *reinterpret_cast<const T*>(body.data());
  }
  // The `n`th of the texts, each with a zero at its end, from `offset` on.
  std::string text(size_t offset, int n = 0) const {
    for (; n > 0; --n)
      offset += std::strlen(body.data() + offset) + 1;
    return body.data() + offset;
  }
};

// Answers the kernel's requests, one at a time, until the file system is gone.
class FuseServer {
 public:
  FuseServer(int device, fs::path root) : device_(device) {
    nodes_[FUSE_ROOT_ID] = std::move(root);
  }
  void run();

 private:
  using Bytes = std::vector<char>;
  // 0 and what `answer` holds, or a negative error number.
  int handle(const FuseRequest& request, Bytes& answer);
  int start(Bytes& answer);
  int look_up(const fs::path& path, Bytes& answer);
  int attributes(uint64_t node, Bytes& answer);
  int change(const FuseRequest& request, Bytes& answer);
  int open(const FuseRequest& request, Bytes& answer);
  int create(const FuseRequest& request, Bytes& answer);
  int read(const FuseRequest& request, Bytes& answer);
  int write(const FuseRequest& request, Bytes& answer);
  int list(const FuseRequest& request, Bytes& answer);
  int rename(const FuseRequest& request, size_t names);
  int remove(const fs::path& path, bool is_folder);
  int file_system(Bytes& answer);

  uint64_t node_of(const fs::path& path);
  fs::path child(const FuseRequest& request, size_t offset) const {
    return nodes_.at(request.head.nodeid) / request.text(offset);
  }

  template <class T>
  static int give(Bytes& answer, const T& value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    const size_t at = answer.size();
    answer.resize(at + sizeof value);
    std::memcpy(answer.data() + at, bytes, sizeof value);
    return 0;
  }
  static int result(int returned) { return returned < 0 ? -errno : 0; }

  const int device_;
  std::map<uint64_t, fs::path> nodes_;
  uint64_t last_node_ = FUSE_ROOT_ID;
};

void FuseServer::run() {
  std::vector<char> buffer(kMaxWrite + 65536);
  for (;;) {
    const ssize_t got = ::read(device_, buffer.data(), buffer.size());
    if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) continue;
    if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) return;  // ENODEV: unmounted
    const auto& head = *reinterpret_cast<const fuse_in_header*>(buffer.data());
    const FuseRequest request{
        head, {buffer.data() + sizeof head, static_cast<size_t>(got) - sizeof head}};
    if (head.opcode == FUSE_FORGET || head.opcode == FUSE_BATCH_FORGET ||
        head.opcode == FUSE_INTERRUPT)
      continue;  // without an answer

    Bytes answer;
    fuse_out_header out{};
    out.unique = head.unique;
    out.error = handle(request, answer);
    if (out.error != 0) answer.clear();
    out.len = static_cast<uint32_t>(sizeof out + answer.size());
    const iovec parts[]{{&out, sizeof out}, {answer.data(), answer.size()}};
    // A request that was given up wants no answer any more.
    if (::writev(device_, parts, 2) < 0 && errno != ENOENT) return;
  }
}

int FuseServer::handle(const FuseRequest& request, Bytes& answer) {
  switch (request.head.opcode) {
    case FUSE_INIT: return start(answer);
    case FUSE_LOOKUP: return look_up(child(request, 0), answer);
    case FUSE_GETATTR: return attributes(request.head.nodeid, answer);
    case FUSE_SETATTR: return change(request, answer);
    case FUSE_OPEN:
    case FUSE_OPENDIR: return open(request, answer);
    case FUSE_CREATE: return create(request, answer);
    case FUSE_READ: return read(request, answer);
    case FUSE_WRITE: return write(request, answer);
    case FUSE_READDIR: return list(request, answer);
    case FUSE_STATFS: return file_system(answer);
    case FUSE_UNLINK: return remove(child(request, 0), false);
    case FUSE_RMDIR: return remove(child(request, 0), true);
    case FUSE_RENAME: return rename(request, sizeof(fuse_rename_in));
    case FUSE_RENAME2: return rename(request, sizeof(fuse_rename2_in));
    case FUSE_MKDIR: {
      const fs::path path = child(request, sizeof(fuse_mkdir_in));
      const int failed = result(::mkdir(path.c_str(), request.as<fuse_mkdir_in>().mode));
      return failed ? failed : look_up(path, answer);
    }
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
      return result(::close(static_cast<int>(request.as<fuse_release_in>().fh)));
    case FUSE_FLUSH:
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR: return 0;
    default: return -ENOSYS;
  }
}

int FuseServer::start(Bytes& answer) {
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  out.max_readahead = kMaxWrite;
  out.flags = FUSE_WRITEBACK_CACHE | FUSE_BIG_WRITES;
  out.max_background = 16;
  out.congestion_threshold = 12;
  out.max_write = kMaxWrite;
  out.time_gran = 1;
  return give(answer, out);
}

uint64_t FuseServer::node_of(const fs::path& path) {
  for (const auto& [node, known] : nodes_)
    if (known == path) return node;
  nodes_[++last_node_] = path;
  return last_node_;
}

// Names and attributes are good for no time: they are asked for again each time.
int FuseServer::look_up(const fs::path& path, Bytes& answer) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return -errno;
  fuse_entry_out out{};
  out.nodeid = node_of(path);
  out.attr = fuse_attributes(info);
  return give(answer, out);
}

int FuseServer::attributes(uint64_t node, Bytes& answer) {
  struct stat info {};
  if (::lstat(nodes_.at(node).c_str(), &info) != 0) return -errno;
  fuse_attr_out out{};
  out.attr = fuse_attributes(info);
  return give(answer, out);
}

int FuseServer::change(const FuseRequest& request, Bytes& answer) {
  const auto& in = request.as<fuse_setattr_in>();
  const fs::path path = nodes_.at(request.head.nodeid);
  if (in.valid & FATTR_SIZE && ::truncate(path.c_str(), static_cast<off_t>(in.size)) != 0)
    return -errno;
  if (in.valid & FATTR_MODE && ::chmod(path.c_str(), in.mode) != 0) return -errno;
  if (in.valid & FATTR_MTIME) {
    const bool now = in.valid & FATTR_MTIME_NOW;
    const timespec times[]{
        {0, UTIME_OMIT},
        {static_cast<time_t>(in.mtime), now ? UTIME_NOW : static_cast<long>(in.mtimensec)}};
    if (::utimensat(AT_FDCWD, path.c_str(), times, 0) != 0) return -errno;
  }
  return attributes(request.head.nodeid, answer);
}

// A kernel that writes back reads parts of pages from files that were opened for writing, too.
int FuseServer::open(const FuseRequest& request, Bytes& answer) {
  const bool is_folder = request.head.opcode == FUSE_OPENDIR;
  const bool writes = (request.as<fuse_open_in>().flags & O_ACCMODE) != O_RDONLY;
  const int flags = is_folder ? O_RDONLY | O_DIRECTORY : (writes ? O_RDWR : O_RDONLY);
  const int fd = ::open(nodes_.at(request.head.nodeid).c_str(), flags | O_CLOEXEC);
  if (fd < 0) return -errno;
  fuse_open_out out{};
  out.fh = static_cast<uint64_t>(fd);
  return give(answer, out);
}

int FuseServer::create(const FuseRequest& request, Bytes& answer) {
  const auto& in = request.as<fuse_create_in>();
  const fs::path path = child(request, sizeof in);
  const int exclusive = static_cast<int>(in.flags) & O_EXCL;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | exclusive, in.mode);
  if (fd < 0) return -errno;
  if (const int failed = look_up(path, answer)) {
    ::close(fd);
    return failed;
  }
  fuse_open_out out{};
  out.fh = static_cast<uint64_t>(fd);
  return give(answer, out);
}

int FuseServer::read(const FuseRequest& request, Bytes& answer) {
  const auto& in = request.as<fuse_read_in>();
  answer.resize(in.size);
  const ssize_t got =
      ::pread(static_cast<int>(in.fh), answer.data(), answer.size(), static_cast<off_t>(in.offset));
  if (got < 0) return -errno;
  answer.resize(static_cast<size_t>(got));
  return 0;
}

int FuseServer::write(const FuseRequest& request, Bytes& answer) {
  const auto& in = request.as<fuse_write_in>();
  const ssize_t wrote = ::pwrite(static_cast<int>(in.fh), request.body.data() + sizeof in, in.size,
                                 static_cast<off_t>(in.offset));
  if (wrote < 0) return -errno;
  fuse_write_out out{};
  out.size = static_cast<uint32_t>(wrote);
  return give(answer, out);
}

// `offset`: how many entries the kernel has had.
int FuseServer::list(const FuseRequest& request, Bytes& answer) {
  const auto& in = request.as<fuse_read_in>();
  DIR* folder = ::opendir(nodes_.at(request.head.nodeid).c_str());
  if (folder == nullptr) return -errno;
  uint64_t number = 0;
  while (const dirent* entry = ::readdir(folder)) {
    if (number++ < in.offset) continue;
    fuse_dirent head{};
    head.ino = entry->d_ino;
    head.off = number;
    head.namelen = static_cast<uint32_t>(std::strlen(entry->d_name));
    head.type = entry->d_type;
    const size_t size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + head.namelen);
    if (answer.size() + size > in.size) break;
    const size_t at = answer.size();
    answer.resize(at + size);
    std::memcpy(answer.data() + at, &head, FUSE_NAME_OFFSET);
    std::memcpy(answer.data() + at + FUSE_NAME_OFFSET, entry->d_name, head.namelen);
  }
  ::closedir(folder);
  return 0;
}

int FuseServer::rename(const FuseRequest& request, size_t names) {
  const fs::path from = child(request, names);
  const fs::path to = nodes_.at(request.as<fuse_rename_in>().newdir) / request.text(names, /*n=*/1);
  if (::rename(from.c_str(), to.c_str()) != 0) return -errno;

  // The nodes below move with it; one that was replaced has no name any more.
  for (auto& [node, path] : nodes_) {
    if (path == to) path = "/nowhere";
    const auto [end, rest] = std::mismatch(from.begin(), from.end(), path.begin(), path.end());
    if (end != from.end()) continue;
    fs::path moved = to;
    for (auto part = rest; part != path.end(); ++part)
      moved /= *part;
    path = moved;
  }
  return 0;
}

// A new file of this name will be another node.
int FuseServer::remove(const fs::path& path, bool is_folder) {
  const int failed = result(is_folder ? ::rmdir(path.c_str()) : ::unlink(path.c_str()));
  if (failed) return failed;
  for (auto& [node, known] : nodes_)
    if (known == path) known = "/nowhere";
  return 0;
}

int FuseServer::file_system(Bytes& answer) {
  struct statfs info {};
  if (::statfs(nodes_.at(FUSE_ROOT_ID).c_str(), &info) != 0) return -errno;
  fuse_statfs_out out{};
  out.st.blocks = info.f_blocks;
  out.st.bfree = info.f_bfree;
  out.st.bavail = info.f_bavail;
  out.st.bsize = static_cast<uint32_t>(info.f_bsize);
  out.st.frsize = static_cast<uint32_t>(info.f_bsize);
  out.st.namelen = 255;
  return give(answer, out);
}

int open_device() { return ::open("/dev/fuse", O_RDWR | O_CLOEXEC); }

bool mount_on(const fs::path& mountpoint, int device) {
  const std::string options =
      "fd=" + std::to_string(device) + ",rootmode=40000,user_id=0,group_id=0";
  return ::mount("caching", mountpoint.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0;
}

}  // namespace

bool CachingMount::available() {
  const int device = open_device();
  if (device < 0) return false;
  ::close(device);
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

CachingMount::CachingMount(const fs::path& folder, fs::path mountpoint)
    : mountpoint_(std::move(mountpoint)) {
  fs::create_directories(mountpoint_);
  const int device = open_device();
  if (device < 0 || !mount_on(mountpoint_, device)) {
    std::perror("cannot mount a FUSE file system");
    std::abort();
  }

  // The server must be another process: this one waits for it inside the kernel.
  const pid_t parent = ::getpid();
  server_ = ::fork();
  if (server_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) FuseServer(device, folder).run();
    ::_exit(0);
  }
  ::close(device);
}

void CachingMount::stall() const { ::kill(server_, SIGSTOP); }

void CachingMount::resume() const { ::kill(server_, SIGCONT); }

CachingMount::~CachingMount() {
  ::umount2(mountpoint_.c_str(), MNT_DETACH);
  ::kill(server_, SIGKILL);
  int status = 0;
  ::waitpid(server_, &status, 0);
}

}  // namespace retort::test
