#include "launch/ssh/earlier_logs.h"

#include <optional>

#include "tests/support/folder_fixture.h"

namespace retort::test {
namespace {

namespace fs = std::filesystem;
using launch::EarlierLogs;

class EarlierLogsTest : public FolderTest {
 protected:
  void SetUp() override { put(a_, "earlier\n"); }
  // As the next start begins: host a has a log of the earlier run, host b has none.
  EarlierLogs put_aside() const { return EarlierLogs({a_, b_}); }
  int64_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }
  const fs::path a_ = folder_ / "host-a.log", b_ = folder_ / "host-b.log";
};

TEST_F(EarlierLogsTest, GoWithTheirRun) {
  std::optional<EarlierLogs> logs(put_aside());
  EXPECT_FALSE(fs::exists(a_));
  put(a_, "now\n");
  logs->remove();
  logs.reset();
  EXPECT_EQ(get(a_), "now\n");
  EXPECT_EQ(files(), 1);
}

// With the folder itself, before anybody calls remove().
TEST_F(EarlierLogsTest, MayBeRemovedByOthers) {
  {
    const EarlierLogs logs = put_aside();
    for (const auto& file : fs::directory_iterator(folder_))
      fs::remove(file);
    put(a_, "now\n");
  }
  EXPECT_EQ(get(a_), "now\n");
  EXPECT_EQ(files(), 1);
}

// A start that could not replace the run: its words stand behind those of the run that is there.
TEST_F(EarlierLogsTest, AreBackWhereTheStartFailed) {
  {
    EarlierLogs logs = put_aside();
    put(a_, "no route\n");
    put(b_, "no route\n");
    const EarlierLogs start(std::move(logs));
    EXPECT_EQ(get(a_), "no route\n");
  }
  EXPECT_EQ(get(a_), "earlier\nno route\n");
  EXPECT_EQ(get(b_), "no route\n");
  EXPECT_EQ(files(), 2);

  { const EarlierLogs logs = put_aside(); }  // one that said nothing
  EXPECT_EQ(get(a_), "earlier\nno route\n");
}

}  // namespace
}  // namespace retort::test
