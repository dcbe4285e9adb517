#include "launch/status/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "launch/status/terminal_text.h"
#include "tests/launch/supervision/process_spec.h"
#include "tests/support/folder_fixture.h"

namespace retort::test {
namespace {

using launch::LoggedStep;
using launch::Progress;
using launch::ProgressState;
using std::chrono::seconds;

TEST(ProgressTextTest, Times) {
  EXPECT_EQ(launch::short_time(seconds(7)), "7s");
  EXPECT_EQ(launch::short_time(seconds(65)), "1m05s");
  EXPECT_EQ(launch::short_time(seconds(3725)), "1h02m");
  EXPECT_EQ(launch::short_time(seconds(-1)), "0s");
}

TEST(ProgressTextTest, PlainLines) {
  const LoggedStep step{
      10, {{"loss", 2.34567}, {"tokens_per_second", 1234.4}, {"learning_rate", 1e-4}}};
  EXPECT_EQ(launch::plain_step(step, "10/200", seconds(65)),
            "step 10/200  loss 2.3457  tokens/s 1234  lr 1.00e-04  eta 1m05s");
  EXPECT_EQ(launch::plain_step(step, "10/200", seconds(65), {{"reward", 0.25}, {"entropy", 2}}),
            "step 10/200  loss 2.3457  reward 0.2500  entropy 2.0000  tokens/s 1234  lr 1.00e-04  "
            "eta 1m05s");
  const LoggedStep eval{50, {{"eval_loss", 1.5}}};
  EXPECT_EQ(launch::plain_step(eval, "50/200", seconds(65)), "eval at step 50  eval_loss 1.5000");
  const LoggedStep counted{50, {{"eval_loss", 1.5}, {"eval_num_tokens", 4987}}};
  EXPECT_EQ(launch::plain_step(counted, "50/200", seconds(65)),
            "eval at step 50  eval_loss 1.5000  eval_num_tokens 4987");
}

TEST(ProgressTextTest, WhatIsNoNumberIsLeftOutUnlessItIsALoss) {
  const double none = std::nan("");
  const LoggedStep step{10, {{"loss", none}}};
  EXPECT_EQ(launch::plain_step(step, "10/200", std::nullopt,
                               {{"kd_loss", none}, {"entropy", none}, {"reward", 1.0}}),
            "step 10/200  loss nan  kd_loss nan  reward 1.0000");
  const LoggedStep eval{50, {{"eval_loss", none}, {"eval_reward", none}}};
  EXPECT_EQ(launch::plain_step(eval, "", std::nullopt), "eval at step 50  eval_loss nan");
}

TEST(ProgressTextTest, DisplayFitsTheTerminal) {
  ProgressState state{
      .title = "distill -> runs/x",
      .processes = {{"student/0", 17, "training", "step 5"},
                    {"teacher/0", 18, "serving", "\x1b[2J" + std::string(300, 'x')}},
      .fraction = 0.5,
      .position = "5/10",
      .last = LoggedStep{5,
                         {{"loss", 1.0},
                          {"grad_norm", 0.5},
                          {"tokens_per_second", 1234},
                          {"learning_rate", 1e-4}}},
      .last_eval = std::nullopt,
      .eta = seconds(9),
      .notice = ""};
  const auto lines = launch::render_progress(state, 60);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[1], "[==========>         ] 5/10  eta 9s  tokens/s 1234");
  EXPECT_EQ(lines[2], "  loss 1.0000  grad_norm 0.500  lr 1.00e-04");
  EXPECT_NE(lines[3].find("student/0"), std::string::npos);
  EXPECT_NE(lines[4].find("pid 18"), std::string::npos);
  for (const auto& line : lines) {
    EXPECT_LE(line.size(), 60u) << line;
    EXPECT_EQ(line.find('\x1b'), std::string::npos) << "a message moved the cursor";
  }
}

class ProgressTest : public FolderTest {
 protected:
  ProgressTest() { EXPECT_EQ(::pipe(pipe_), 0); }
  ~ProgressTest() override { ::close(pipe_[0]); }
  // Everything until nobody has the write end any more.
  std::string read_all() const {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::read(pipe_[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(got));
    return text;
  }
  // Everything written so far; closes the write end.
  std::string shown() {
    ::close(pipe_[1]);
    return read_all();
  }
  // No byte more fits into the pipe; how many do.
  size_t fill() const {
    size_t bytes = 0;
    ::fcntl(pipe_[1], F_SETFL, O_NONBLOCK);
    while (::write(pipe_[1], "x", 1) == 1)
      ++bytes;
    ::fcntl(pipe_[1], F_SETFL, 0);
    return bytes;
  }
  // What comes after those bytes, read while `progress` waits for that at its end.
  std::string shown_after(size_t bytes, Progress& progress) {
    std::string text;
    std::thread reader([&] { text = read_all(); });
    progress.finish();
    ::close(pipe_[1]);
    reader.join();
    return text.substr(bytes);
  }
  int pipe_[2];
};

TEST_F(ProgressTest, WithoutATerminalStatesAndStepsAreLines) {
  put(folder_ / "metrics.jsonl", "{\"step\": 1, \"loss\": 9}\n");  // of an earlier run
  {
    Progress progress({.fd = pipe_[1],
                       .title = "sft -> run",
                       .metrics = folder_ / "metrics.jsonl",
                       .start_step = 1,
                       .max_steps = 4});
    progress.on_start(process_spec("student", 0), 17);
    progress.on_status(process_spec("student", 0), {"training", 0, "", ""});
    progress.on_status(process_spec("student", 0), {"training", 2, "", ""});  // same state: no line
    progress.on_status(process_spec("student", 0),
                       {"saving", 2, "", ""});  // of every checkpoint: none
    progress.on_status(process_spec("student", 0), {"training", 2, "", ""});
    std::ofstream(folder_ / "metrics.jsonl", std::ios::app)
        << "{\"step\": 2, \"loss\": 2.5}\n{\"step\": 2, \"eval_loss\": 3}\n";
    progress.on_tick();
    std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << "{\"step\": 4, \"loss\": 1.5}\n";
    progress.on_exit(process_spec("student", 0), "done");
  }
  const std::string text = shown();
  const std::string begin =
      "sft -> run\nstudent/0 started, pid 17\nstudent/0 training\nstep 2/4  loss 2.5000\neval at "
      "step 2  eval_loss 3.0000\n"
      "student/0 done\nstep 4/4  loss 1.5000";
  EXPECT_EQ(text.substr(0, begin.size()), begin);
}

TEST_F(ProgressTest, WarningsAreLines) {
  {
    Progress progress(
        {.fd = pipe_[1], .title = "", .metrics = folder_ / "metrics.jsonl", .max_steps = 4});
    progress.on_status(process_spec("student", 0), {"training", 1, "", ""});
    launch::ProcessStatus warns{"training", 2, "a spike", ""};
    warns.warning = true;
    progress.on_status(process_spec("student", 0), warns);
    progress.on_status(process_spec("student", 0), {"training", 2, "", ""});
    EXPECT_EQ(progress.state().warning, "student/0: a spike");
    const auto lines = launch::render_progress(progress.state(), 80);
    EXPECT_EQ(lines.back(), "warning: student/0: a spike");
    warns.state = "done";
    progress.on_status(process_spec("student", 0), warns);
  }
  EXPECT_EQ(shown(),
            "student/0 training: step 1 \nwarning: student/0: a spike\nstudent/0 done: a spike\n");
}

// Steps come every 4 s of the test's clock: the first, the last, and one every 10 s are shown.
TEST_F(ProgressTest, WithoutATerminalFewStepsAreShown) {
  Progress::Clock::time_point now{};
  Progress progress({.fd = pipe_[1],
                     .title = "",
                     .metrics = folder_ / "metrics.jsonl",
                     .max_steps = 8,
                     .now = [&] { return now; }});
  std::ofstream metrics(folder_ / "metrics.jsonl");
  for (int step = 1; step <= 8; ++step) {
    metrics << "{\"step\": " << step << ", \"loss\": 1}\n";
    if (step == 2) metrics << "{\"step\": 2, \"eval_loss\": 3}\n";
    metrics.flush();
    progress.on_tick();
    now += seconds(4);
  }
  progress.finish();
  EXPECT_EQ(shown(),
            "step 1/8  loss 1.0000\n"
            "eval at step 2  eval_loss 3.0000\n"
            "step 4/8  loss 1.0000  eta 16s\n"
            "step 7/8  loss 1.0000  eta 4s\n"
            "step 8/8  loss 1.0000  eta 0s\n");
}

// In the order that was asked for. A round's number stands in its first row, and stays.
TEST_F(ProgressTest, WatchedNumbersStandBesideTheLoss) {
  Progress progress({.fd = pipe_[1],
                     .plain_interval = Duration(0),
                     .title = "",
                     .metrics = folder_ / "metrics.jsonl",
                     .watched = {"reward", "missing", "kl"},
                     .max_steps = 3});
  put(folder_ / "metrics.jsonl",
      "{\"step\": 1, \"loss\": 1, \"kl\": 0.5, \"reward\": 0.25}\n"
      "{\"step\": 2, \"loss\": 1, \"kl\": 0.75}\n{\"step\": 3, \"loss\": 1, \"reward\": null}\n");
  progress.finish();
  const std::string text = shown();
  EXPECT_NE(text.find("step 1/3  loss 1.0000  reward 0.2500  kl 0.5000"), std::string::npos)
      << text;
  EXPECT_NE(text.find("step 2/3  loss 1.0000  reward 0.2500  kl 0.7500"), std::string::npos)
      << text;
  EXPECT_NE(text.find("step 3/3  loss 1.0000  kl 0.7500"), std::string::npos)
      << "what is no number is left out: " << text;
}

// Not as other numbers: a run that lost none says nothing of them.
TEST_F(ProgressTest, CountsAreShownAboveZero) {
  Progress progress({.fd = pipe_[1],
                     .plain_interval = Duration(0),
                     .title = "",
                     .metrics = folder_ / "metrics.jsonl",
                     .watched = {"episodes/num_lost", "reward"},
                     .max_steps = 3});
  put(folder_ / "metrics.jsonl",
      "{\"step\": 1, \"loss\": 1, \"reward\": 0.5, \"episodes/num_lost\": 13}\n"
      "{\"step\": 2, \"loss\": 1}\n"
      "{\"step\": 3, \"loss\": 1, \"reward\": 0.5, \"episodes/num_lost\": 0}\n");
  progress.finish();
  const std::string text = shown();
  EXPECT_NE(text.find("step 1/3  loss 1.0000  lost 13  reward 0.5000"), std::string::npos) << text;
  EXPECT_NE(text.find("step 2/3  loss 1.0000  lost 13  reward 0.5000"), std::string::npos)
      << "of its round: " << text;
  EXPECT_NE(text.find("step 3/3  loss 1.0000  reward 0.5000"), std::string::npos) << text;
}

TEST_F(ProgressTest, TheLastStepOfARunStoppedEarlyIsShown) {
  Progress progress(
      {.fd = pipe_[1], .title = "", .metrics = folder_ / "metrics.jsonl", .max_steps = 8});
  std::ofstream metrics(folder_ / "metrics.jsonl");
  for (int step = 1; step <= 3; ++step)
    metrics << "{\"step\": " << step << "}\n";
  metrics.flush();
  progress.on_tick();
  progress.on_phase("stopping");
  progress.finish();
  const std::string text = shown();
  EXPECT_EQ(text.find("step 2/8"), std::string::npos) << text;
  EXPECT_NE(text.find("step 1/8\nstopping\nstep 3/8"), std::string::npos) << text;
}

TEST_F(ProgressTest, TheLastStepIsShownBeforeTheEnd) {
  Progress progress(
      {.fd = pipe_[1], .title = "", .metrics = folder_ / "metrics.jsonl", .max_steps = 4});
  put(folder_ / "metrics.jsonl", "{\"step\": 4, \"loss\": 1.5}\n");
  progress.finish();
  EXPECT_EQ(shown(), "step 4/4  loss 1.5000\n");
}

TEST_F(ProgressTest, EpochsMeasureARunWithoutSteps) {
  Progress progress(
      {.fd = pipe_[1], .title = "", .metrics = folder_ / "metrics.jsonl", .num_epochs = 2.0});
  put(folder_ / "metrics.jsonl", "{\"step\": 7, \"epoch\": 0.5, \"loss\": 1}\n");
  progress.finish();
  EXPECT_EQ(shown(), "step 7 (epoch 0.50/2)  loss 1.0000\n");
}

// Thirteen lines are 95 of the 100 bytes that may wait.
TEST_F(ProgressTest, LinesThatNobodyReadsAreCountedAndTheLastIsKept) {
  const size_t before = fill();
  Progress progress({.fd = pipe_[1],
                     .title = "",
                     .metrics = folder_ / "metrics.jsonl",
                     .max_steps = 8,
                     .max_waiting = 100,
                     .last_wait = Duration(60'000)});
  std::string expected;
  for (int i = 1; i <= 1000; ++i) {
    const std::string line = "line " + std::to_string(i);
    if (i <= 13) expected += line + "\n";
    progress.on_phase(line);
  }
  put(folder_ / "metrics.jsonl", "{\"step\": 3, \"loss\": 1}\n");
  progress.on_tick();  // a step that is dropped as well, and shown at the end
  EXPECT_EQ(shown_after(before, progress),
            expected + "(988 lines were dropped: nobody read them)\nstep 3/8  loss 1.0000\n");
}

TEST_F(ProgressTest, TheEndDoesNotWaitForAReaderForEver) {
  fill();
  Progress progress({.fd = pipe_[1],
                     .title = "title",
                     .metrics = folder_ / "metrics.jsonl",
                     .max_steps = 8,
                     .last_wait = Duration(1)});
  progress.finish();
  ::close(pipe_[1]);
}

TEST_F(ProgressTest, ALiveDisplayThatNobodyReadsIsNotDrawnAgain) {
  const size_t before = fill();
  Progress::Clock::time_point now{};
  Progress progress({.fd = pipe_[1],
                     .live = true,
                     .columns = 70,
                     .title = "sft -> run",
                     .metrics = folder_ / "metrics.jsonl",
                     .max_steps = 4,
                     .now = [&] { return now; },
                     .last_wait = Duration(60'000)});
  for (int i = 0; i < 5; ++i) {
    now += seconds(1);
    progress.on_tick();
  }
  const std::string text = shown_after(before, progress);
  size_t drawings = 0;
  for (size_t at = text.find("sft -> run"); at != std::string::npos;
       at = text.find("sft -> run", at + 1))
    ++drawings;
  EXPECT_EQ(drawings, 2u) << "the first and that of finish()";
}

TEST_F(ProgressTest, ALiveDisplayIsDrawnInPlace) {
  {
    Progress progress({.fd = pipe_[1],
                       .live = true,
                       .columns = 70,
                       .title = "sft -> run",
                       .metrics = folder_ / "metrics.jsonl",
                       .max_steps = 4,
                       .now = [] { return Progress::Clock::time_point{}; }});
    progress.on_start(process_spec("student", 0), 17);
    progress.on_tick();
    progress.on_tick();  // too soon: no second drawing
  }
  const std::string text = shown();
  size_t drawings = 0;
  for (size_t at = text.find("sft -> run"); at != std::string::npos;
       at = text.find("sft -> run", at + 1))
    ++drawings;
  EXPECT_EQ(drawings, 2u) << "one by the tick, one by finish()";
  EXPECT_NE(text.find("\x1b[3A\r"), std::string::npos)
      << "the second goes back up over the three lines of the first";
}

}  // namespace
}  // namespace retort::test
