#include "engines/wire/json_stream.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/json_text.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

// Writes what a text says, one word for each call.
class Writer final : public JsonHandler {
 public:
  void begin_object() override { said << "{ "; }
  void end_object() override { said << "} "; }
  void begin_array() override { said << "[ "; }
  void end_array() override { said << "] "; }
  void key(std::string_view name) override { said << name << ": "; }
  void string(std::string_view text) override { said << json_quote(text) << " "; }
  void number(double value) override { said << json_number(value) << " "; }
  void boolean(bool value) override { said << (value ? "yes " : "no "); }
  void null() override { said << "null "; }
  std::ostringstream said;
};

// Reads the text in pieces of `size` bytes.
std::string read(const std::string& text, size_t size = 1000) {
  Writer writer;
  JsonReader reader(writer);
  for (size_t at = 0; at < text.size(); at += size)
    reader.add(std::string_view(text).substr(at, size));
  reader.end();
  return writer.said.str();
}

TEST(JsonReader, ReadsWhateverWayItIsCut) {
  const std::string text =
      " {\"a\" : [1, -2.5e-3,0, 1E+2],\r\n\t\"\\u00e9\\n\\\"\":{}, \"b\":[[],[{}]], "
      "\"c\":[true,false,null,\"\\ud83d\\ude80x\",\"\"]} ";
  const std::string said =
      "{ a: [ 1 -0.0025 0 100 ] é\n\": { } "
      "b: [ [ ] [ { } ] ] c: [ yes no null \"🚀x\" \"\" ] } ";
  for (size_t size = 1; size <= text.size(); ++size)
    EXPECT_EQ(read(text, size), said) << size;
}

TEST(JsonReader, ReadsOutermostValues) {
  EXPECT_EQ(read("12"), "12 ");
  EXPECT_EQ(read("1", 1), "1 ");
  EXPECT_EQ(read(" null "), "null ");
  EXPECT_EQ(read("\"a\""), "\"a\" ");
}

TEST(JsonReader, MendsHalvesOfPairs) {
  const std::string lost = "\"\xEF\xBF\xBD";
  EXPECT_EQ(read("\"\\ud83d\""), lost + "\" ");
  EXPECT_EQ(read("\"\\ude80\""), lost + "\" ");
  EXPECT_EQ(read("\"\\ud83dx\""), lost + "x\" ");
  EXPECT_EQ(read("\"\\ud83d\\n\""), read("\"\\ude80\\n\""));
  EXPECT_EQ(read("\"\\ud83d\\ud83d\\ude80\""), lost + "🚀\" ");
}

TEST(JsonReader, KeepsTheBeginningOfLongTexts) {
  const std::string text(10 * JsonReader::kKeptBytes, 'x');
  for (const size_t size : {size_t{1}, size_t{1000}, text.size()})
    EXPECT_EQ(read("[\"" + text + "\",2]", size),
              "[ \"" + text.substr(0, JsonReader::kKeptBytes) + "\" 2 ] ");
}

TEST(JsonReader, GivesWholeTextsInPieces) {
  struct Pieces final : JsonHandler {
    void begin_object() override {}
    void end_object() override {}
    void begin_array() override {}
    void end_array() override {}
    void key(std::string_view) override {}
    void string(std::string_view) override { said += "|"; }
    void string_piece(std::string_view piece) override { said += piece; }
    void number(double) override {}
    void boolean(bool) override {}
    void null() override {}
    std::string said;
  };
  const std::string text(10 * JsonReader::kKeptBytes, 'x');
  for (const size_t size : {size_t{1}, size_t{1000}, 2 * text.size()}) {
    Pieces pieces;
    JsonReader reader(pieces);
    const std::string json = "{\"key\": [\"" + text + "\", \"\", \"a\\n\\ud83d\\ude80\"]}";
    for (size_t at = 0; at < json.size(); at += size)
      reader.add(std::string_view(json).substr(at, size));
    reader.end();
    EXPECT_EQ(pieces.said, text + "||a\n🚀|") << size;
  }
}

TEST(JsonReader, ReadsNumbersAsTheyAre) {
  EXPECT_EQ(read("[-7.390861511230469,4.9406564584124654e-324,1e-999,1.7976931348623157e308]"),
            "[ -7.390861511230469 5e-324 0 1.7976931348623157e+308 ] ");
}

TEST(JsonReader, RefusesWhatIsNoJson) {
  for (const std::string text :
       {"",          " ",          "{",           "[",      "[1",    "[1,",    "[1,]",
        "{\"a\"}",   "{\"a\":}",   "{\"a\":1,}",  "{1:2}",  "[1 2]", "]",      "}",
        "[}",        "{]",         "1 2",         "nul",    "nulL",  "tru",    "NaN",
        "-Infinity", "Infinity",   "+1",          "01",     "1.",    ".5",     "1e",
        "1e+",       "-",          "--1",         "1-1",    "1e999", "-1e999", "\"",
        "\"\\x\"",   "\"\\u12\"",  "\"\\u12g4\"", "\"\n\"", "'a'",   "<html>", "[1]]",
        "\x01",      "\"a\" \"b\""})
    for (const size_t size : {size_t{1}, size_t{1000}}) {
      const Error error = test::error_of([&] { read(text, size); });
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << text;
      EXPECT_EQ(error.message().substr(0, 15), "no JSON at byte") << text;
    }
  EXPECT_EQ(test::error_of([] { read("[1, NaN]"); }).message(),
            "no JSON at byte 4: \"N\" where a value is expected");
  EXPECT_EQ(test::error_of([] { read("[1, NaN]", 3); }).message(),
            "no JSON at byte 4: \"N\" where a value is expected");
}

TEST(JsonReader, BoundsWhatStrangersSend) {
  EXPECT_EQ(read(std::string(100, '[') + std::string(100, ']')).size(), 400u);
  EXPECT_NE(test::error_of([] { read(std::string(101, '[')); }).message().find("levels"),
            std::string::npos);
  EXPECT_NE(test::error_of([] { read(std::string(65, '1')); }).message().find("too long"),
            std::string::npos);
}

}  // namespace
}  // namespace retort::engines
