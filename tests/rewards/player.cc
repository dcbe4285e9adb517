#include "tests/rewards/player.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/process/child.h"

namespace retort::test {
namespace {
using Json = nlohmann::json;
using Part = std::function<void()>;

std::string answer(const Json& id, const Json& score) {
  return Json{{"id", id}, {"score", score}}.dump();
}
void say(const std::string& line) { std::cout << line << std::endl; }

// Calls `each` for every request until the end of the input.
void for_each_request(const std::function<void(const Json&)>& each) {
  for (std::string line; std::getline(std::cin, line);)
    each(Json::parse(line));
}
Json score_of(const Json& request) {
  const std::string text = request["completion"];
  return text == "null" ? Json() : Json(static_cast<double>(text.size()));
}
void honest() {
  for_each_request([](const Json& request) { say(answer(request["id"], score_of(request))); });
}
// Says `line` to each request; "%" stands for its id.
Part always(const std::string& line) {
  return [line] {
    for_each_request([&](const Json& request) {
      std::string text = line;
      if (const size_t at = text.find('%'); at != std::string::npos)
        text.replace(at, 1, request["id"].dump());
      say(text);
    });
  };
}
void sleep_forever() {
  for (;;)
    ::pause();
}

// ---- parts that score ----

// 7 where the request carries the field and no reference.
void echo() {
  for_each_request([](const Json& r) {
    say(answer(r["id"], r["fields"]["value"] == "7" && r["reference"].is_null() ? 7 : 0));
  });
}

// Waits for the second request of a pair, and answers that one first.
void pairs_reversed() {
  std::vector<Json> waiting;
  for_each_request([&](const Json& request) {
    waiting.push_back(request);
    if (waiting.size() < 2) return;
    for (const size_t i : {1, 0})
      say(answer(waiting[i]["id"], score_of(waiting[i])));
    waiting.clear();
  });
}

// Long answers and much on stderr: all three pipes are full at once.
void wordy() {
  const std::string note(3000, 'n');
  const std::string noise(3000, 'e');
  for_each_request([&](const Json& request) {
    std::cerr << noise << "\n";
    const Json line{{"id", request["id"]}, {"score", score_of(request)}, {"note", note}};
    std::cout << line.dump() << "\n" << std::flush;
  });
}

void floods_stderr() {
  std::cerr << std::string(1'000'000, 'e') << "\nthe last words" << std::endl;
  honest();
}

void closes_stderr() {
  ::close(2);
  honest();
}

// Equal are answers with the same letters; of a label "?" it cannot tell. It must be asked of no
// numbers.
void compares() {
  const auto sorted = [](std::string text) {
    std::sort(text.begin(), text.end());
    return text;
  };
  for_each_request([&](const Json& r) {
    const std::string label = r["label"];
    const std::string letters = sorted(r["answer"]);
    const Json score = label == "?" ? Json() : Json(letters == sorted(label) ? 1 : 0);
    say(answer(r["id"], label == "7" && letters == "8" ? Json("numbers") : score));
  });
}

// Equal is "same" alone; "hangs" takes for ever.
void compares_slowly() {
  for_each_request([](const Json& r) {
    if (r["answer"] == "hangs") sleep_forever();
    say(answer(r["id"], r["answer"] == "same" ? 1 : 0));
  });
}

// Equal is what has so many seconds.
void compares_seconds() {
  for_each_request([](const Json& r) {
    say(answer(r["id"],
               r["seconds"].get<double>() == std::stod(r["label"].get<std::string>()) ? 1 : 0));
  });
}

void stubborn() {
  ::signal(SIGTERM, SIG_IGN);
  honest();
  sleep_forever();
}

// ---- parts that do not answer ----

void hangs() {
  for_each_request([](const Json&) {});
  sleep_forever();
}

// Answers the first request alone.
void hangs_half() {
  bool first = true;
  for_each_request([&](const Json& request) {
    if (std::exchange(first, false)) say(answer(request["id"], 1));
  });
}

void closes_stdin() {
  ::close(0);
  sleep_forever();
}

void closes_stdout() {
  ::close(1);
  sleep_forever();
}

void exits() {
  std::string line;
  std::getline(std::cin, line);
  std::cerr << "Traceback: no such module\n" << std::flush;
  ::_exit(3);
}

// The grandchild keeps the pipes open after the leader's death.
void grandchild() {
  const pid_t other = ::fork();
  if (other == 0) sleep_forever();
  std::cerr << "grandchild " << other << std::endl;
  ::_exit(5);
}

// Knows neither an end of its input nor another request to end, and has a helper. Says both pids.
void says_its_pids() {
  ::signal(SIGTERM, SIG_IGN);
  const pid_t helper = ::fork();
  if (helper == 0) sleep_forever();
  say(std::to_string(::getpid()) + " " + std::to_string(helper));
  sleep_forever();
}

// A process with a program of its own, which a thread that has ended started. Says all pids.
void employs() {
  std::unique_ptr<Child> program;
  std::thread([&] { program = std::make_unique<Child>(player("says_its_pids")); }).join();
  say(std::to_string(::getpid()) + " " + line_from(program->out()));
  sleep_forever();
}

// ---- parts that write what is no answer ----

void twice() {
  for_each_request(
      [](const Json& request) { say(answer(request["id"], 1) + "\n" + answer(request["id"], 2)); });
}

void floods_stderr_for_ever() {
  for (const std::string noise(4096, 'e');;)
    std::cerr << noise << std::endl;
}

void floods_stdout() {
  for (const std::string noise(4096, 'o');;)
    std::cout << noise << std::flush;
}

void floods_lines() {
  for (;;)
    std::cout << "\n \n\n";
}

const std::map<std::string, Part>& parts() {
  static const std::map<std::string, Part> all{
      {"honest", honest},
      {"echo", echo},
      {"pairs_reversed", pairs_reversed},
      {"wordy", wordy},
      {"floods_stderr", floods_stderr},
      {"closes_stderr", closes_stderr},
      {"compares", compares},
      {"compares_seconds", compares_seconds},
      {"compares_slowly", compares_slowly},
      {"gives_half", always(R"({"id": %, "score": 0.5})")},
      {"stubborn", stubborn},

      {"hangs", hangs},
      {"hangs_half", hangs_half},
      {"never_reads", sleep_forever},
      {"closes_stdin", closes_stdin},
      {"closes_stdout", closes_stdout},
      {"exits", exits},
      {"exits_at_once", [] { ::_exit(4); }},
      {"is_killed", [] { ::raise(SIGKILL); }},
      {"grandchild", grandchild},
      {"says_its_pids", says_its_pids},
      {"employs", employs},

      {"rubbish", always("Loading model ...")},
      {"long_rubbish", always(std::string(500, 'x'))},
      {"twice", twice},
      {"unknown_id", always(R"({"id": 99, "score": 1})")},
      {"no_id", always(R"({"score": 1})")},
      {"no_score", always(R"({"id": %})")},
      {"text_score", always(R"({"id": %, "score": "1"})")},
      {"nan", always(R"({"id": %, "score": NaN})")},
      {"infinite", always(R"({"id": %, "score": 1e999})")},
      {"floods_stderr_for_ever", floods_stderr_for_ever},
      {"floods_stdout", floods_stdout},
      {"floods_lines", floods_lines},
  };
  return all;
}

}  // namespace

std::string line_from(int fd) {
  std::string line;
  for (;;) {
    pollfd readable{fd, POLLIN, 0};
    char byte = 0;
    if (::poll(&readable, 1, 60'000) != 1 || ::read(fd, &byte, 1) != 1 || byte == '\n') return line;
    line += byte;
  }
}

std::vector<std::string> player(const std::string& part) {
  return {std::filesystem::read_symlink("/proc/self/exe").string(), "--play", part};
}

void play_if_asked(int argc, char** argv) {
  if (argc != 3 || std::string(argv[1]) != "--play") return;
  parts().at(argv[2])();
  ::_exit(0);
}

}  // namespace retort::test
