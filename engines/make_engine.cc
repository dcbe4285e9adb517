#include "engines/make_engine.h"

#include "base/error.h"
#include "engines/kserve/engine.h"
#include "engines/llamacpp/engine.h"
#include "engines/openai/engine.h"
#include "engines/sglang/engine.h"
#include "engines/vllm/engine.h"
#include "engines/wire/plain_admin.h"
#include "http/url.h"

namespace retort::engines {

std::unique_ptr<Engine> make_engine(const ExternalOptions& options, const std::string& url,
                                    const std::string& key) {
  const http::Url address = http::parse_url(url);
  refuse_plain_key(address, key);
  if (options.weights.via != WeightRoute::kNone)
    refuse_plain_admin(address, options.allow_plain_admin, "loading weights");

  switch (options.engine) {
    case EngineKind::kLlamacpp: return llamacpp::make_llamacpp(options, url, key);
    case EngineKind::kKserve: return kserve::make_kserve(options, url, key);
    case EngineKind::kOpenai: return openai::make_openai(options, url, key);
    case EngineKind::kSglang: return sglang::make_sglang(options, url, key);
    case EngineKind::kVllm: return vllm::make_vllm(options, url, key);
  }
  throw Error(ErrorCode::kInvalidArgument, "an engine that is none");
}

}  // namespace retort::engines
