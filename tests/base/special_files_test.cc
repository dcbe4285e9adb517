// What is no regular file is refused at once, wherever a file is expected; a pipe may give a text
// that is read once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/file_kind.h"
#include "base/piped_file.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort {
namespace {
namespace fs = std::filesystem;

class SpecialFiles : public test::FolderTest {
 protected:
  SpecialFiles() {
    EXPECT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = (folder_ / "socket").string();
    name.copy(address.sun_path, sizeof address.sun_path - 1);
    socket_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~SpecialFiles() override { ::close(socket_); }

  // Path, and what its message says.
  std::vector<std::pair<fs::path, std::string>> none() const {
    return {{folder_ / "pipe", "is not a regular file but a pipe"},
            {folder_ / "socket", "is not a regular file but a socket"},
            {folder_, "is not a regular file but a folder"},
            {"/dev/zero", "is not a regular file but a device"}};
  }

 private:
  int socket_ = -1;
};

TEST_F(SpecialFiles, AreRefusedAtOnce) {
  for (const auto& [path, message] : none()) {
    const std::string expected = path.string() + " " + message;
    EXPECT_EQ(test::message_of([&] { read_file(path); }), expected);
    EXPECT_EQ(test::message_of([&] { MappedFile map(path); }), expected);
    EXPECT_EQ(test::message_of([&] { ::close(open_regular_file(path)); }), expected);
    EXPECT_EQ(file_kind_of(path), FileKind::kUnknown);
  }
  // A link to one is one.
  fs::create_symlink(folder_ / "pipe", folder_ / "link");
  EXPECT_NE(test::message_of([&] { read_file(folder_ / "link"); }).find("a pipe"),
            std::string::npos);
}

TEST_F(SpecialFiles, AllButAPipeAreNoText) {
  for (const auto& [path, message] : none()) {
    const std::string said = test::message_of([&] { read_file_or_pipe(path); });
    EXPECT_TRUE(said.starts_with(path.string() + " is ")) << said;
  }
  put(folder_ / "file", "text");
  EXPECT_EQ(read_file_or_pipe(folder_ / "file"), "text");
}

TEST_F(SpecialFiles, APipeIsReadToItsEnd) {
  const std::string text(300'000, 'x');  // more than a pipe holds
  // Open for reading too, so that it need not wait for the reader.
  const int fd = ::open((folder_ / "pipe").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  std::string read;
  std::thread reader([&] { read = read_file_or_pipe(folder_ / "pipe"); });
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    ASSERT_GT(wrote, 0);
    done += static_cast<size_t>(wrote);
  }
  ::close(fd);
  reader.join();
  EXPECT_EQ(read, text);
}

TEST_F(SpecialFiles, APipeOfNobodyAndOneWithoutEndAreRefused) {
  const fs::path pipe = folder_ / "pipe";
  EXPECT_NE(test::message_of([&] { read_file_or_pipe(pipe); }).find("nothing is written into"),
            std::string::npos);

  const int fd = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  std::string message;
  std::atomic<bool> over{false};
  std::thread reader([&] {
    message = test::message_of([&] { read_file_or_pipe(pipe); });
    over = true;
  });
  const std::string piece(1 << 16, 'x');
  while (!over)
    if (::write(fd, piece.data(), piece.size()) < 0) std::this_thread::yield();
  reader.join();
  ::close(fd);
  EXPECT_NE(message.find("with more than 16 MiB"), std::string::npos) << message;
}

}  // namespace
}  // namespace retort
