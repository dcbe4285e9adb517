// Says a recipe's way of drawing in llama-server's parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engines/llamacpp/json.h"
#include "models/generation/request.h"

namespace retort::engines::llamacpp {

// The parameters of /completion, all of those that change what is drawn: the server's own defaults
// truncate, and its command line can change each of them.
//
// The order of samplers is ours: penalties, temperature, top_k, top_p, min_p. Each does the same in
// both: top_p keeps the token that crosses the mass, min_p is a share of the largest probability
// after the temperature, the penalty reaches over prompt and completion (repeat_last_n is given as
// their length). Ids from num_ids on are barred one by one. `seed` has 31 bits; the server's own
// draw follows, so the same seed draws other tokens than our engine would.
//   prompt_tokens, new_tokens: their numbers   vocab_rows: of the server's model
// kInvalidArgument for options that are wrong.
Json draw_parameters(const models::DrawOptions& how, uint32_t seed, int64_t prompt_tokens,
                     int64_t new_tokens, int64_t vocab_rows);
// Those under which token `id` is "drawn" whatever the model says.
Json forcing_parameters(int32_t id, int64_t num_top);

// kMismatch naming the parameter: the server drew with others than those it was given. `settings`:
// its generation_settings.
void check_settings(const Json& parameters, const Json& settings);

}  // namespace retort::engines::llamacpp
