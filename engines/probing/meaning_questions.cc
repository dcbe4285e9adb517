// Single tokens at the least certain places of the text, drawn in several ways.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engines/contract/tempered_top_k.h"
#include "engines/probing/drawn_meaning.h"
#include "engines/probing/session.h"

namespace retort::engines {
namespace {

constexpr size_t kPlaces = 2;
constexpr uint64_t kDrawsOfPlace = 6;

// Where a token is drawn, and the raw top-k there.
struct Place {
  std::vector<int32_t> prompt;
  std::vector<int32_t> ids;  // falling; empty without top-k
  std::vector<float> log_probs;
};

// Chooses the positions at which the most probable token is the least certain: draws differ most
// there, and tokens that differ tell the meanings apart.
std::vector<Place> choose_places(const ProbeSession& session) {
  const ScoreRequest request = session.text_request();
  const Scored& cold = *session.cold;
  // Without a top-k the given token's own log-probability has to tell how certain a place is.
  const bool wide = cold.ids.defined();
  const int64_t k = wide ? cold.ids.size(1) : 0;
  const at::Tensor ids = wide ? cold.ids.contiguous() : at::Tensor();
  const at::Tensor values = wide ? cold.log_probs.contiguous() : at::Tensor();
  const auto certainty = [&](size_t row) {
    return wide ? values.const_data_ptr<float>()[static_cast<int64_t>(row) * k] : cold.given[row];
  };
  std::vector<size_t> rows(request.positions.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  std::stable_sort(rows.begin(), rows.end(),
                   [&](size_t a, size_t b) { return certainty(a) < certainty(b); });

  std::vector<Place> places;
  for (size_t i = 0; i < std::min(kPlaces, rows.size()); ++i) {
    const int32_t position = request.positions[rows[i]];
    Place place;
    place.prompt.assign(request.token_ids.begin(), request.token_ids.begin() + position + 1);
    if (wide) {
      const auto offset = static_cast<int64_t>(rows[i]) * k;
      place.ids.assign(ids.const_data_ptr<int32_t>() + offset,
                       ids.const_data_ptr<int32_t>() + offset + k);
      place.log_probs.assign(values.const_data_ptr<float>() + offset,
                             values.const_data_ptr<float>() + offset + k);
    }
    places.push_back(std::move(place));
  }
  return places;
}

// Draws a few tokens of each place. The list is empty if the engine gives no log-probabilities of
// them.
std::vector<DrawnToken> draw_tokens(ProbeSession& session, const std::string& what,
                                    const std::vector<Place>& places,
                                    const models::SamplingOptions& how) {
  std::vector<DrawRequest> requests;
  for (const Place& place : places)
    for (uint64_t i = 0; i < kDrawsOfPlace; ++i)
      requests.push_back({.prompt = place.prompt,
                          .how = {.sampling = how,
                                  .max_new_tokens = 1,
                                  .eos_token_ids = session.subject.end_tokens},
                          .seed = 100 + i});
  const std::vector<Drawn> answers = session.ask.draw_together(what, std::move(requests));

  std::vector<DrawnToken> tokens;
  for (size_t i = 0; i < answers.size(); ++i) {
    // The answers stand in the order of the requests, kDrawsOfPlace of them for each place.
    if (answers[i].log_probs.empty()) continue;
    tokens.push_back({.place = i / kDrawsOfPlace,
                      .id = answers[i].token_ids.front(),
                      .drawn = answers[i].log_probs.front()});
  }
  return tokens;
}

// Fills in the raw log-probabilities, each asked for once.
class RawNumbers {
 public:
  RawNumbers(ProbeSession& session, const std::vector<Place>& places)
      : session_(session), places_(places) {}

  void fill(std::vector<DrawnToken>& tokens) {
    std::vector<std::pair<size_t, int32_t>> missing;
    std::vector<ScoreRequest> requests;
    for (const DrawnToken& token : tokens) {
      // Draws of one place repeat tokens, and those of several ways do. Only those not seen before
      // are asked about, in one go.
      if (!known_.try_emplace({token.place, token.id}, 0.0f).second) continue;
      missing.emplace_back(token.place, token.id);
      ScoreRequest& request = requests.emplace_back();
      request.token_ids = places_[token.place].prompt;
      request.positions = {static_cast<int32_t>(request.token_ids.size()) - 1};
      request.token_ids.push_back(token.id);
    }
    const std::vector<Scored> scored =
        session_.scores("single tokens that were drawn", std::move(requests));
    for (size_t i = 0; i < missing.size(); ++i)
      known_[missing[i]] = scored[i].given.front();
    for (DrawnToken& token : tokens)
      token.raw = known_.at({token.place, token.id});
  }

 private:
  ProbeSession& session_;
  const std::vector<Place>& places_;
  std::map<std::pair<size_t, int32_t>, float> known_;
};

// Bounds each token's log-probability at the probe's temperature. The normaliser is only known up
// to the mass outside the top-k, hence bounds and no numbers.
void bound_tempered(const std::vector<Place>& places, int64_t ids,
                    std::vector<DrawnToken>& tokens) {
  for (size_t p = 0; p < places.size(); ++p) {
    const Place& place = places[p];
    if (place.log_probs.empty()) continue;
    at::Tensor row = at::empty({1, static_cast<int64_t>(place.log_probs.size())},
                               at::TensorOptions().dtype(at::kFloat));
    std::copy(place.log_probs.begin(), place.log_probs.end(), row.mutable_data_ptr<float>());
    const TemperedTopK tempered = tempered_top_k(row, kProbeTemperature, ids, 1e-5);
    const double first = tempered.log_probs[0][0].item<double>();
    for (DrawnToken& token : tokens) {
      if (token.place != p) continue;
      const double head = first + (token.raw - place.log_probs.front()) / kProbeTemperature;
      token.least_tempered = head + std::log1p(-tempered.most_tail.item<double>());
      token.most_tempered = head + std::log1p(-tempered.least_tail.item<double>());
    }
  }
}

// Lists what is tried: top_p always, the others where the role uses them.
std::vector<std::pair<std::string, models::SamplingOptions>> ways(
    const models::SamplingOptions& role) {
  std::vector<std::pair<std::string, models::SamplingOptions>> list{{"top_p 0.3", {.top_p = 0.3}}};
  if (role.top_k > 0) list.push_back({"top_k 2", {.top_k = 2}});
  if (role.min_p > 0) list.push_back({"min_p 0.5", {.min_p = 0.5}});
  return list;
}

}  // namespace

void ask_meaning(ProbeSession& session) {
  Contract& contract = session.contract;
  contract.drawn = DrawnMeaning::kUnknown;
  if (!session.cold) {
    contract.drawn_why = "the engine scores nothing, and there is no local copy to compare with";
    return;
  }
  const std::vector<Place> places = choose_places(session);
  RawNumbers raw(session, places);
  std::vector<DrawnToken> hot = draw_tokens(session, "single tokens at temperature 2", places,
                                            {.temperature = kProbeTemperature});
  if (hot.empty()) {
    contract.drawn = DrawnMeaning::kNone;
    contract.drawn_why = "it gives no log-probabilities of what it draws";
    return;
  }
  raw.fill(hot);
  bound_tempered(places, session.ids, hot);
  for (const DrawnToken& token : hot)
    if (token.place == hot.front().place && token.id != hot.front().id)
      contract.seeds_differ = true;

  // An engine may refuse a way of truncating. That is no failure of the probe, since the role
  // cannot use the way either.
  std::vector<Truncation> truncations;
  for (const auto& [name, how] : ways(session.options.sampling)) {
    Truncation truncation{.name = name, .tokens = {}, .kept = {}};
    try {
      truncation.tokens = draw_tokens(session, "single tokens with " + name, places, how);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      continue;
    }
    raw.fill(truncation.tokens);
    for (const Place& place : places)
      truncation.kept.push_back(kept_by(how, place.log_probs));
    truncations.push_back(std::move(truncation));
  }
  const DrawnFinding finding = explain(hot, truncations);
  contract.drawn = finding.meaning;
  contract.drawn_why = finding.why;
  contract.truncates = finding.truncates;
}

}  // namespace retort::engines
