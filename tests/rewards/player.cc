#include "tests/rewards/player.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

namespace retort::rewards::test {
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

const std::map<std::string, Part>& parts() {
  static const std::map<std::string, Part> all{
      {"honest", honest},
      {"echo",
       [] {
         for_each_request([](const Json& r) {
           say(answer(r["id"], r["fields"]["value"] == "7" && r["reference"].is_null() ? 7 : 0));
         });
       }},
      {"pairs_reversed",
       [] {
         std::vector<Json> held;
         for_each_request([&](const Json& request) {
           held.push_back(request);
           if (held.size() < 2) return;
           for (const size_t i : {1, 0})
             say(answer(held[i]["id"], score_of(held[i])));
           held.clear();
         });
       }},
      {"wordy",  // long answers and much on stderr: all three pipes are full at once
       [] {
         const std::string note(3000, 'n'), noise(3000, 'e');
         for_each_request([&](const Json& request) {
           std::cerr << noise << "\n";
           std::cout
               << Json{{"id", request["id"]}, {"score", score_of(request)}, {"note", note}}.dump()
               << "\n"
               << std::flush;
         });
       }},
      {"hangs", [] { for_each_request([](const Json&) {}), sleep_forever(); }},
      {"hangs_half",
       [] {
         bool first = true;
         for_each_request([&](const Json& request) {
           if (std::exchange(first, false)) say(answer(request["id"], 1));
         });
       }},
      {"never_reads", sleep_forever},
      {"stubborn", [] { ::signal(SIGTERM, SIG_IGN), honest(), sleep_forever(); }},
      {"exits",
       [] {
         std::string line;
         std::getline(std::cin, line);
         std::cerr << "Traceback: no such module\n" << std::flush;
         ::_exit(3);
       }},
      {"exits_at_once", [] { ::_exit(4); }},
      {"is_killed", [] { ::raise(SIGKILL); }},
      {"rubbish", always("Loading model ...")},
      {"long_rubbish", always(std::string(500, 'x'))},
      {"twice",
       [] {
         for_each_request([](const Json& request) {
           say(answer(request["id"], 1) + "\n" + answer(request["id"], 2));
         });
       }},
      {"unknown_id", always(R"({"id": 99, "score": 1})")},
      {"no_id", always(R"({"score": 1})")},
      {"no_score", always(R"({"id": %})")},
      {"text_score", always(R"({"id": %, "score": "1"})")},
      {"nan", always(R"({"id": %, "score": NaN})")},
      {"infinite", always(R"({"id": %, "score": 1e999})")},
      {"closes_stdin", [] { ::close(0), sleep_forever(); }},
      {"closes_stdout", [] { ::close(1), sleep_forever(); }},
      {"closes_stderr", [] { ::close(2), honest(); }},
      {"floods_stderr",
       [] {
         std::cerr << std::string(1'000'000, 'e') << "\nthe last words" << std::endl, honest();
       }},
      {"floods_stderr_for_ever",
       [] {
         for (const std::string noise(4096, 'e');;)
           std::cerr << noise << std::endl;
       }},
      {"floods_stdout",
       [] {
         for (const std::string noise(4096, 'o');;)
           std::cout << noise << std::flush;
       }},
      {"floods_lines",
       [] {
         for (;;)
           std::cout << "\n \n\n";
       }},
      {"grandchild",  // whoever holds the pipes open after the leader's death
       [] {
         const pid_t other = ::fork();
         if (other == 0) sleep_forever();
         std::cerr << "grandchild " << other << std::endl;
         ::_exit(5);
       }},
  };
  return all;
}

}  // namespace

std::vector<std::string> player(const std::string& part) {
  return {std::filesystem::read_symlink("/proc/self/exe").string(), "--play", part};
}

void play_if_asked(int argc, char** argv) {
  if (argc != 3 || std::string(argv[1]) != "--play") return;
  parts().at(argv[2])();
  ::_exit(0);
}

}  // namespace retort::rewards::test
