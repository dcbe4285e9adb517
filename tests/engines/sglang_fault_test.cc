// Answers that SGLang, or what stands before it, should not give: each ends in an error that says
// what is wrong and where.
#include <gtest/gtest.h>

#include "engines/contract/options.h"
#include "tests/engines/sglang_recordings.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using test::soon;

class SglangFault : public test::RecordedSglang {
 protected:
  void expect_load_error(ErrorCode code, const std::string& part) {
    expect_named(code, part, [&] { engine().load_weights(weights(), soon()).get(); });
  }

  struct Case {
    std::string from, to;
    ErrorCode code;
    std::string part;
  };
  void expect_score_errors(const std::string& name, const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.from + " -> " + c.to);
      expect_score_error(c.code, c.part, json_reply(changed(name, c.from, c.to)));
    }
  }
};

// Row 1 is of position 1, whose token is 23; rows 2 and 3 are not wanted, 4 and 7 are.
TEST_F(SglangFault, GivenTokensThatCannotBe) {
  const std::string row = "[-8.78328800201416,23,null]";
  expect_score_errors(
      "score-top",
      {// A number that is no log-probability.
       {row, "[8.78,23,null]", ErrorCode::kCorrupt, "at most 0"},
       {row, "[null,23,null]", ErrorCode::kCorrupt, "null, which stands for NaN"},
       {row, "[-3.4e38,23,null]", ErrorCode::kCorrupt, "NaN or minus infinity"},
       {row, "[NaN,23,null]", ErrorCode::kCorrupt, "no JSON at byte"},
       {row, "[\"-8.7\",23,null]", ErrorCode::kCorrupt, "holds a text"},

       // A row that is not number, id and text.
       {row, "[-8.78,23]", ErrorCode::kCorrupt, "2 elements"},
       {row, "[-8.78,23,null,null]", ErrorCode::kCorrupt, "4 elements"},
       {row, "[-8.78,null,null]", ErrorCode::kCorrupt, "holds null"},
       {row, "[-8.78,0.5,null]", ErrorCode::kCorrupt, "no token id"},
       {row, "[]", ErrorCode::kCorrupt, "0 elements"},
       {row, "{}", ErrorCode::kCorrupt, "holds an object"},
       {row, "null", ErrorCode::kCorrupt, "holds null"},

       // Tokens that are not those of the question, at their places.
       {row, "[-8.78328800201416,24,null]", ErrorCode::kMismatch, "of token 24, and 23"},
       {row, "[-8.78328800201416,0,null]", ErrorCode::kMismatch, "of token 0, and 23"},
       {row, row + "," + row, ErrorCode::kMismatch, "of token 23, and 310"},
       {row + ",", "", ErrorCode::kMismatch, "of token 310, and 23"},

       // A number that the row's top entries contradict, and one where nothing comes before.
       {row, "[-0.5,23,null]", ErrorCode::kCorrupt, "which is not token 23"},
       {"[null,160,null]", "[-1,160,null]", ErrorCode::kMismatch, "before the first token"},

       // Rows too few or too many, none at all, or twice.
       {",[-6.149805545806885,310,null]", "", ErrorCode::kMismatch, "7 entries for 8 tokens"},
       {"[-6.149805545806885,310,null]]", "[-6.149805545806885,310,null],[-1,99,null]]",
        ErrorCode::kMismatch, "one more than the 8"},
       {"\"input_token_logprobs\"", "\"others\"", ErrorCode::kMismatch,
        "input_token_logprobs: is missing"},
       {"\"input_token_logprobs\"", "\"input_token_logprobs\":[],\"input_token_logprobs\"",
        ErrorCode::kCorrupt, "twice"}});
}

// Nobody asked for position 2.
TEST_F(SglangFault, RowsThatNobodyWantsMayBeAnything) {
  server().answer("score-top",
                  json_reply(changed("score-top", "[-7.95270299911499,310", "[null,310")));
  EXPECT_EQ(engine().score(score({1, 4, 7}, 3), soon()).get().given.size(), 3u);
}

// The first bytes are the float -1.6355028 and the id 139, both of row 1.
TEST_F(SglangFault, FlatRowsThatCannotBe) {
  const std::string value = "KFjRv7i5", ids = "iwAAAPkA";
  expect_score_errors(
      "score-top",
      {// Numbers that are no log-probabilities, or do not fall.
       {value, "KFjRP7i5", ErrorCode::kCorrupt, "at most 0"},
       {value, "AADAf7i5", ErrorCode::kCorrupt, "is no log-probability"},
       {value, "KFjRwLi5", ErrorCode::kCorrupt, "do not fall"},

       // Text that is no base64, or that of fewer bytes.
       {value, "KF*Rv7i5", ErrorCode::kCorrupt, "no base64"},
       {value, "KFjRv7i", ErrorCode::kCorrupt, "no base64"},
       {value, "KFjR====v7i5", ErrorCode::kCorrupt, "no base64"},
       {value, "", ErrorCode::kCorrupt, "78 and 84 bytes instead of 84"},

       // Ids that no token has, or that one row has twice.
       {ids, "i/AAAPkA", ErrorCode::kCorrupt, "has the id 61579"},
       {ids, "iwAAAIsA", ErrorCode::kCorrupt, "twice"},

       // Sizes that are not those of the question.
       {"\"input_top_logprobs_shape\":[7,3]", "\"input_top_logprobs_shape\":[7,2]",
        ErrorCode::kMismatch, "[7, 2] instead of [7, 3]"},
       {"\"input_top_logprobs_shape\":[7,3]", "\"input_top_logprobs_shape\":[6,3]",
        ErrorCode::kMismatch, "[6, 3] instead of [7, 3]"},
       {"\"input_top_logprobs_shape\":[7,3]", "\"input_top_logprobs_shape\":[7,3,1]",
        ErrorCode::kMismatch, "more than 2 sizes"},
       {"\"input_top_logprobs_shape\":[7,3],", "", ErrorCode::kMismatch, "[] instead of"},

       // Fields that say another format, or are not there.
       {"\"input_top_logprobs_null_prefix\":1", "\"input_top_logprobs_null_prefix\":0",
        ErrorCode::kMismatch, "is 0 instead of 1"},
       {"\"input_top_logprobs_val_flat_b64_dtype\":\"float32\"",
        "\"input_top_logprobs_val_flat_b64_dtype\":\"float16\"", ErrorCode::kMismatch, "float16"},
       {"\"input_top_logprobs_idx_flat_b64\"", "\"others\"", ErrorCode::kCorrupt, "84 and 0 bytes"},
       {"\"input_top_logprobs_shape\"", "\"input_top_logprobs\":[],\"input_top_logprobs_shape\"",
        ErrorCode::kMismatch, "flat and one by one"}});
}

TEST_F(SglangFault, NestedRowsThatCannotBe) {
  // Row 1, and what it begins with.
  const nlohmann::json rows = answer("score-nested").at("meta_info").at("input_top_logprobs");
  const std::string first = rows.at(1).at(0).dump(), row = rows.at(1).dump();
  const std::string number = rows.at(1).at(0).at(0).dump(), list = "\"input_top_logprobs\":[null,";

  expect_score_errors(
      "score-nested",
      {// Entries of a row: too few, too many, or one of them twice.
       {row, "null", ErrorCode::kMismatch, "only the first may be"},
       {row, "[]", ErrorCode::kMismatch, "0 entries instead of 3"},
       {row, "[" + first + "]", ErrorCode::kMismatch, "1 entries instead of 3"},
       {row, "[" + first + "," + first + "," + first + "]", ErrorCode::kCorrupt, "twice"},
       {first, first + "," + first, ErrorCode::kMismatch, "more than the 3"},

       // An entry that cannot be.
       {first, "[" + number + ",999,null]", ErrorCode::kCorrupt, "has the id 999"},
       {first, "[null,139,null]", ErrorCode::kCorrupt, "NaN or infinity"},
       {first, "[0.5,139,null]", ErrorCode::kCorrupt, "at most 0"},
       {first, "[-9,139,null]", ErrorCode::kCorrupt, "do not fall"},
       {first, "7", ErrorCode::kCorrupt, "holds the number 7"},

       // Rows of other tokens.
       {row + ",", "", ErrorCode::kMismatch, "7 entries for 8 tokens"},
       {list, "\"input_top_logprobs\":[", ErrorCode::kMismatch, "before the first token"},
       {list, list + "null,", ErrorCode::kMismatch, "only the first may be"},
       {"\"input_top_logprobs\"", "\"others\"", ErrorCode::kMismatch, "0 entries for 8"}});
}

TEST_F(SglangFault, AnswersToOtherQuestions) {
  const std::string length = "{\"type\":\"length\",\"length\":0}";
  expect_score_errors(
      "score-top",
      {{"\"id\":\"${rid}\"", "\"id\":\"other\"", ErrorCode::kMismatch, "another request"},
       {"\"prompt_tokens\":9", "\"prompt_tokens\":8", ErrorCode::kMismatch,
        "--allow-auto-truncate"},
       {"\"meta_info\"", "\"meta\"", ErrorCode::kMismatch, "id: is \"\""},
       {length, "null", ErrorCode::kMismatch, "finish_reason: is missing"},
       {length, "{\"type\":\"abort\",\"message\":\"Aborted\",\"status_code\":null}",
        ErrorCode::kUnavailable, "Aborted"}});
  const std::string body = exchange("score-top").answer.at("body").get<std::string>();
  expect_score_error(ErrorCode::kCorrupt, "holds an array", json_reply("[" + body + "]"));
}

TEST_F(SglangFault, DrawsThatWereNotAskedFor) {
  const std::string length = "{\"type\":\"length\",\"length\":12}";
  const nlohmann::json entry =
      answer("draw-length").at("meta_info").at("output_token_logprobs").at(0);
  const std::vector<Case> cases{
      {"[331,318,", "[318,", ErrorCode::kMismatch, "12 numbers for 11"},
      {"[331,318,", "[330,318,", ErrorCode::kMismatch, "other ids"},
      {"[331,318,", "[0.5,318,", ErrorCode::kCorrupt, "no token id"},
      {"[331,318,", "[1,331,318,", ErrorCode::kMismatch, "more than the 12"},
      {"\"output_ids\"", "\"ids\"", ErrorCode::kMismatch, "output_ids: is missing"},
      {"\"output_token_logprobs\"", "\"others\"", ErrorCode::kMismatch,
       "output_token_logprobs: is missing"},
      {entry.dump(), "[0.25,331,null]", ErrorCode::kCorrupt, "output_token_logprobs[0]"},
      {entry.dump(), "[null,331,null]", ErrorCode::kCorrupt, "NaN or infinity"},
      {entry.dump(), entry.dump() + "," + entry.dump(), ErrorCode::kMismatch, "one more than"},
      {length, "{\"type\":\"stop\",\"matched\":331}", ErrorCode::kMismatch, "which no end token"},
      {length, "{\"type\":\"stop\",\"matched\":\"NaN happened\"}", ErrorCode::kMismatch,
       "NaN happened"},
      {length, "{\"type\":\"stop\",\"matched\":[44,388]}", ErrorCode::kMismatch, "by token 388"},
      {length, "{\"type\":\"other\"}", ErrorCode::kMismatch, "expected"},
      {length, "{\"type\":\"abort\",\"message\":\"Aborted\"}", ErrorCode::kUnavailable, "Aborted"},
      {"\"prompt_tokens\":5", "\"prompt_tokens\":4", ErrorCode::kMismatch, "prompt_tokens"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.from + " -> " + c.to);
    expect_draw_error(c.code, c.part, json_reply(changed("draw-length", c.from, c.to)));
  }

  expect_no_draw_of_others();
  const std::string cut = changed("draw-end", "\"type\":\"stop\"", "\"type\":\"length\"");
  expect_draw_error(ErrorCode::kMismatch, "after 6 of 12", json_reply(cut));
}

TEST_F(SglangFault, WhatIsNoAnswerOfSglang) {
  expect_no_score_of_strangers();

  expect_score_error(ErrorCode::kInvalidArgument, "does not take the request: ",
                     test::reply(400, "{\"error\": {\"message\": \"no such thing\"}}"));
  expect_score_error(ErrorCode::kInvalidArgument, "no such door", test::reply(404, "{}"));
  expect_score_error(ErrorCode::kUnauthenticated, "401",
                     test::reply(401, "{\"error\":\"Unauthorized\"}"));
  expect_score_error(ErrorCode::kUnavailable, "500", test::reply(500, "Internal Server Error"));
}

TEST_F(SglangFault, ServersThatAreNotThereYet) {
  server().answer("ready", test::reply(503, ""));
  expect_named(ErrorCode::kUnavailable, "503", [&] { engine().state(soon()).get(); });
  server().answer("ready", test::reply(404, "{\"detail\": \"Not Found\"}"));
  expect_named(ErrorCode::kInvalidArgument, "no such door", [&] { engine().state(soon()).get(); });
}

TEST_F(SglangFault, ModelsThatAreNotWanted) {
  const auto state = [&] { engine().state(soon()).get(); };
  server().answer(
      "model", json_reply(changed("model", "\"is_generation\":true", "\"is_generation\":false")));
  expect_named(ErrorCode::kInvalidArgument, "does not generate", state);
  server().answer("model", json_reply(changed("model", "served_model_name", "name")));
  expect_named(ErrorCode::kCorrupt, "served_model_name is missing", state);
  server().answer("model", json_reply("[]"));
  expect_named(ErrorCode::kCorrupt, "no JSON object", state);
  server().answer("model", exchange("model").reply());

  const auto other = make({.served_model = "other"});
  expect_named(ErrorCode::kMismatch, "\"other\" is wanted", [&] { other->state(soon()).get(); });
  make({.served_model = "/models/tiny"})->state(soon()).get();
  // A server names weights that were loaded before by their folder.
  ExternalOptions loaded{.served_model = "tiny"};
  loaded.weights = {.via = WeightRoute::kFolder, .folder = "/models"};
  make(loaded)->state(soon()).get();
  loaded.weights.folder = "/model";
  expect_named(ErrorCode::kMismatch, "is wanted", [&] { make(loaded)->state(soon()).get(); });
}

// /server_info has the server's keys.
TEST_F(SglangFault, ServersThatSayTooLittle) {
  for (const std::string field :
       {"max_req_input_len", "version", "enable_deterministic_inference"}) {
    server().answer("server", json_reply(changed("server", "\"" + field, "\"x")));
    const Error error = test::error_of([&] { engine().state(soon()).get(); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_NE(error.message().find(field), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("of-the"), std::string::npos) << error.what();
  }
  server().answer("server", exchange("server").reply());
  for (const std::string& reply :
       {test::reply(400, "{\"error\": {\"message\": \"no\"}}"), exchange("tiny").reply()}) {
    server().answer("vocabulary", reply);
    expect_named(ErrorCode::kMismatch, "how many ids its model knows",
                 [&] { engine().state(soon()).get(); });
  }
  server().answer("vocabulary", test::reply(500, "no"));
  expect_named(ErrorCode::kUnavailable, "500", [&] { engine().state(soon()).get(); });
}

TEST_F(SglangFault, WeightsThatWereNotLoaded) {
  server().answer("update", test::reply(404, "{\"detail\": \"Not Found\"}"));
  expect_load_error(ErrorCode::kInvalidArgument, "no such door");
  server().answer("update", test::reply(401, "{\"error\":\"Unauthorized\"}"));
  expect_load_error(ErrorCode::kUnauthenticated, "--admin-api-key");
  server().answer("update", exchange("update-failed").reply());
  expect_load_error(ErrorCode::kMismatch, "did not take the weights");
  server().answer("update", exchange("update-busy").reply());
  expect_load_error(ErrorCode::kUnavailable, "are requests of others running");
  for (const std::string body : {"{\"success\":false}", "{\"success\":1}", "[]", "{}", "x"}) {
    server().answer("update", json_reply(body));
    expect_load_error(ErrorCode::kMismatch, "expected {\"success\": true");
  }

  server().answer("update", exchange("update").reply());
  server().answer("flush", exchange("flush-failed").reply());
  expect_load_error(ErrorCode::kUnavailable, "are requests of others running");
  server().answer("flush", test::reply(200, "<html>"));
  expect_load_error(ErrorCode::kMismatch, "expected \"Cache flushed.\"");
  server().answer("flush", exchange("flush").reply());

  // The server says that it serves something else.
  server().answer("model", json_reply(changed("model", "\"model_path\":\"${model_path}\"",
                                              "\"model_path\":\"/models/tiny\"")));
  expect_load_error(ErrorCode::kMismatch, "serves \"/models/tiny\"");
  server().answer("model", json_reply(changed("model", "${weight_version}", "default")));
  expect_load_error(ErrorCode::kMismatch, "weight_version is \"default\"");
  server().answer("model", exchange("model").reply());
  engine().load_weights(weights(), soon()).get();
}

// Somebody else loads weights, or another server answers.
TEST_F(SglangFault, WeightsOfOthers) {
  const std::string other = changed("draw-length", "${weight_version}", "another");
  server().answer("draw-length", json_reply(other));
  engine().draw(draw(), soon()).get();  // nobody said yet which they are
  server().answer("draw-length", exchange("draw-length").reply());
  engine().load_weights(weights(), soon()).get();
  engine().draw(draw(), soon()).get();
  expect_draw_error(ErrorCode::kMismatch, "somebody else gives this server weights",
                    json_reply(other));
  expect_score_error(ErrorCode::kMismatch, "weight_version: is \"default\"",
                     json_reply(changed("score-top", "${weight_version}", "default")));
}

}  // namespace
}  // namespace retort::engines
