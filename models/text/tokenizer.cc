#include "models/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/hash.h"
#include "base/log.h"
#include "models/text/detail/rust_call.h"

namespace retort::models {
using detail::borrow;
using detail::borrow_optional;
using detail::call_rust;
using detail::RustString;

struct Tokenizer::Impl {
  RtTokenizer* handle = nullptr;
  RtInfo info{};
  std::filesystem::path folder;
  std::string chat_template;

  ~Impl() { rt_tokenizer_free(handle); }
};

namespace {

class RustTokens : public detail::RustOwned<RtTokens, rt_tokens_free> {
 public:
  std::vector<int32_t> ids() const { return {raw_.ids, raw_.ids + raw_.len}; }
  std::vector<std::pair<uint32_t, uint32_t>> offsets() const {
    std::vector<std::pair<uint32_t, uint32_t>> pairs(raw_.len);
    for (size_t i = 0; i < raw_.len; ++i)
      pairs[i] = {raw_.offsets[2 * i], raw_.offsets[2 * i + 1]};
    return pairs;
  }
};

// Tells whether transformers takes tokenizer.json itself for this kind of model, whatever the class
// says.
bool class_is_passed_over(const std::filesystem::path& folder) {
  const auto config = folder / "config.json";
  if (!std::filesystem::exists(config)) return false;
  const auto parsed = nlohmann::json::parse(read_file(config), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return false;
  const auto kind = parsed.find("model_type");
  return kind != parsed.end() && (*kind == "phi3" || *kind == "qwen2");
}

}  // namespace

// Warns of a folder that transformers 5 reads otherwise.
void Tokenizer::warn_of_class(const Impl& impl) {
  RustString difference;
  call_rust("", rt_tokenizer_class_difference, impl.handle, difference.out());
  if (difference.view().empty() || class_is_passed_over(impl.folder)) return;
  RETORT_LOG(kWarning) << impl.folder.string() << ": " << difference.view();
}

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json";
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorCode::kInvalidArgument,
                "no tokenizer.json in the folder; only fast tokenizers are supported "
                "(transformers' save_pretrained "
                "writes one)")
        .with("path", path.string());
  }
  const std::string json = read_file(path);
  expect_text(json, path.string(), "the JSON of a fast tokenizer");
  const auto files = detail::TextFiles::read(folder);
  auto impl = std::make_shared<Impl>();
  call_rust(folder.string(), rt_tokenizer_open, borrow(json), borrow_optional(files.config),
            borrow_optional(files.special_map), &impl->handle);
  impl->info = rt_tokenizer_info(impl->handle);
  impl->folder = folder;
  if (const std::string* source = files.chat_template("default")) impl->chat_template = *source;
  if (const std::string* source = files.chat_template("tool_use"))
    impl->chat_template += "\ntool_use " + *source;
  warn_of_class(*impl);
  return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  RustTokens tokens;
  call_rust("", rt_tokenizer_encode, impl_->handle, borrow(text), add_special_tokens, false,
            tokens.out());
  return tokens.ids();
}

Tokenizer::Encoding Tokenizer::encode_with_offsets(std::string_view text,
                                                   bool add_special_tokens) const {
  RustTokens tokens;
  call_rust("", rt_tokenizer_encode, impl_->handle, borrow(text), add_special_tokens, true,
            tokens.out());
  return {tokens.ids(), tokens.offsets()};
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  RustString text;
  call_rust("", rt_tokenizer_decode, impl_->handle, ids.data(), ids.size(), skip_special_tokens,
            text.out());
  return text.str();
}

std::string Tokenizer::id_to_token(int32_t id) const {
  RustString token;
  call_rust("", rt_tokenizer_id_to_token, impl_->handle, id, token.out());
  return token.str();
}

int32_t Tokenizer::token_to_id(std::string_view token) const {
  int32_t id = -1;
  call_rust("", rt_tokenizer_token_to_id, impl_->handle, borrow(token), &id);
  return id;
}

int64_t Tokenizer::vocab_size() const { return impl_->info.vocab_size; }
int32_t Tokenizer::eos_id() const { return impl_->info.eos; }
int32_t Tokenizer::bos_id() const { return impl_->info.bos; }
int32_t Tokenizer::pad_id() const { return impl_->info.pad; }
const std::filesystem::path& Tokenizer::folder() const { return impl_->folder; }

std::vector<Tokenizer::Token> Tokenizer::vocabulary() const {
  RustString entries;
  call_rust("", rt_tokenizer_vocabulary, impl_->handle, /*limit=*/int64_t{0}, entries.out());
  std::string_view rest = entries.view();
  const auto take = [&](size_t bytes) {
    RETORT_CHECK(bytes <= rest.size()) << "a token of the vocabulary is cut";
    const std::string_view taken = rest.substr(0, bytes);
    rest.remove_prefix(bytes);
    return taken;
  };
  const auto take_number = [&] {
    uint32_t number = 0;
    for (int shift = 0; const char byte : take(4)) {
      number |= uint32_t{static_cast<uint8_t>(byte)} << shift;
      shift += 8;
    }
    return number;
  };

  // The crate writes them one behind the other: id, length, text, flag.
  std::vector<Token> tokens;
  while (!rest.empty()) {
    Token token{.id = static_cast<int32_t>(take_number())};
    token.text = take(take_number());
    token.is_special = take(1)[0] != 0;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::string Tokenizer::vocabulary_fingerprint(int64_t limit) const {
  RustString entries;
  call_rust("", rt_tokenizer_vocabulary, impl_->handle, limit, entries.out());
  return sha256_hex(entries.view());
}

std::string Tokenizer::processing_fingerprint() const {
  RustString processing;
  call_rust("", rt_tokenizer_processing, impl_->handle, processing.out());
  Sha256 hash;
  hash.update(processing.view());
  hash.update(std::string_view("\0", 1));
  hash.update(impl_->chat_template);
  return hash.hex_digest();
}

}  // namespace retort::models
