#include "recipes/data/row_scan.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "recipes/data/detail/keep_hashes.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/sample.h"
#include "recipes/data/source_files.h"

namespace retort::data {
namespace {

// Linux has a priority for each thread. With 10 this one gets a tenth of a core that computes, and
// all of one that is idle.
void lower_own_priority() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
}

}  // namespace

std::string RowFindings::text() const {
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  char text[96];
  std::snprintf(text, sizeof text, "%lld rows, %.3g GB at %.2g GB/s", static_cast<long long>(rows),
                gigabytes, seconds > 0 ? gigabytes / seconds : 0.0);
  return text;
}

struct RowScan::Impl {
  struct File {
    Source source;
    JsonlFile rows;
    bool is_train = false;
  };

  explicit Impl(const Options& given) : check(given.check), cache(given.cache) {
    RETORT_CHECK(check != nullptr);
    found = promise.get_future().share();
    thread = std::thread([this, train = given.train, eval = given.eval] { run(train, eval); });
  }
  ~Impl() {
    stop = true;
    if (thread.joinable()) thread.join();
  }

  void open(const std::vector<Source>& sources, bool is_train) {
    for (const Source& source : expand_sources(sources)) {
      if (stop) return;
      files.push_back({source, JsonlFile(source.path, cache), is_train});
      num_rows += files.back().rows.size();
    }
  }

  // A run that ends at a bad row needs the hashes to go on once the row is mended, so they are kept
  // before it hears of it. Of good data nobody waits for them.
  void run(const std::vector<Source>& train, const std::vector<Source>& eval) {
    try {
      // Opening decompresses, for which the run itself waits too, so it keeps its priority.
      open(train, true);
      open(eval, false);
      // A scan that keeps nothing (`retort check`, `retort audit`) has no training beside it.
      if (!cache.empty()) lower_own_priority();
      RowFindings findings = look();
      const bool is_good = findings.bad.count() == 0;
      if (!is_good) keep_hashes();
      promise.set_value(std::move(findings));
      if (is_good) keep_hashes();
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }

  RowFindings look() {
    const auto begin = std::chrono::steady_clock::now();
    RowFindings findings;
    for (const File& file : files)
      for (int64_t row = 0; row < file.rows.size() && !stop; ++row) {
        const std::string_view line = file.rows.line(row);
        look_at(file, row, line, findings);
        findings.bytes += static_cast<int64_t>(line.size());
        findings.rows = ++looked_at;
      }
    findings.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return findings;
  }

  void look_at(const File& file, int64_t row, std::string_view line, RowFindings& findings) const {
    try {
      check(line, file.source);
      if (file.is_train && row == 0)
        findings.has_messages = findings.has_messages || holds_messages(line, file.source);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      const std::string origin =
          file.source.path + ":" + std::to_string(file.rows.line_number(row));
      findings.bad.add(origin, origin + ": " + error.message());
    }
  }

  // Without the hashes a file that is mended later counts as another one. Nothing else is lost, so
  // a failure is only a warning.
  void keep_hashes() {
    if (cache.empty()) return;
    for (const File& file : files) {
      if (!file.is_train || stop) continue;
      try {
        detail::keep_hashes(file.rows, cache, [this] { return stop.load(); });
      } catch (const std::exception& error) {
        RETORT_LOG(kWarning) << "the hashes of the rows of " << file.source.path
                             << " are not kept: " << error.what();
      }
    }
  }

  const RowCheck check;
  const std::filesystem::path cache;
  std::vector<File> files;
  std::atomic<int64_t> num_rows = 0;
  std::atomic<bool> stop = false;
  std::atomic<int64_t> looked_at = 0;
  std::promise<RowFindings> promise;
  std::shared_future<RowFindings> found;
  std::thread thread;
};

RowScan::RowScan(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
RowScan::~RowScan() = default;

bool RowScan::wait(Duration limit) const {
  return impl_->found.wait_for(limit) == std::future_status::ready;
}

const RowFindings& RowScan::findings() const { return impl_->found.get(); }

int64_t RowScan::num_looked_at() const { return impl_->looked_at; }
int64_t RowScan::num_rows() const { return impl_->num_rows; }

}  // namespace retort::data
