// A question to a model that talks, by OpenAI's protocol of chat completions.
#pragma once

#include <cstdint>
#include <string>

#include "engines/engine.h"

namespace retort::engines::openai {

// The body of the request: one message of a user, temperature 0. Bytes of the text that are not
// UTF-8 are replaced.
std::string chat_question(const std::string& served_model, const WriteRequest& request);

// What an answer may bring at the most: its tokens, each escaped, and what servers say beside them.
uint64_t answer_bytes(const WriteRequest& request);

// kCorrupt for an answer that is none, in the server's words where it has some: gateways say
// "error" with a status of 200.
Written read_chat_answer(const std::string& json);

}  // namespace retort::engines::openai
