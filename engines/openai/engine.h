// Any server of OpenAI's chat completions: it writes text, and nothing is known of its tokens.
#pragma once

#include <memory>
#include <string>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"

namespace retort::engines::openai {

// It writes (Engine::write) and does nothing else. Of each answer the model that it names must be
// that of the first one: kInvalidArgument, which ends a run, when an address is given to another.
// `url`: with or without the "/v1" of its doors. A server without a list of models (a gateway)
// needs ExternalOptions::served_model.
// kInvalidArgument for options that cannot be, as make_engine (engines/make_engine.h).
std::unique_ptr<Engine> make_openai(const ExternalOptions& options, const std::string& url,
                                    const std::string& key);

}  // namespace retort::engines::openai
