#include "recipes/distill/cache_manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "models/checkpoint/checkpoint.h"
#include "roles/teacher/model_files.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

constexpr const char* kBegunName = "begun.json";
constexpr const char* kManifestName = "manifest.json";

std::string json_of(const CacheManifest::Teacher& teacher) {
  return JsonLine()
      .add("model", teacher.model)
      .add("dtype", teacher.dtype)
      .add("hidden_size", teacher.hidden_size)
      .add("vocab_rows", teacher.vocab_rows)
      .add("tokenizer_size", teacher.tokenizer_size)
      .add("weights", teacher.weights)
      .add("files", teacher.files)
      .add("head_checksum", std::to_string(teacher.head_checksum))
      .str();
}

std::string json_of(const roles::PayloadSpec& spec) {
  return JsonLine()
      .add("kind", enum_name(spec.kind))
      .add("top_k", spec.top_k)
      .add("temperature", spec.temperature)
      .add("bfloat16", spec.bfloat16)
      .add("common_vocab", spec.common_vocab)
      .add("num_samples", spec.num_samples)
      .add("replacement", spec.replacement)
      .add("seed", std::to_string(spec.seed))
      .str();
}

std::string packs_json(const CacheManifest& manifest) {
  const auto of_file = [](const PayloadFile& file) {
    return JsonLine().add("name", file.name).add("bytes", file.bytes).str();
  };
  return JsonLine()
      .add("formed_by", manifest.packs)
      .add("sequences", manifest.sequences)
      .add("target_tokens", manifest.rows)
      .add("bytes", manifest.bytes)
      .raw("files", json_array(manifest.files, of_file))
      .str();
}

std::string json_of(const CacheManifest& manifest) {
  const std::string tokenizer = JsonLine()
                                    .add("ids", manifest.tokenizer.ids)
                                    .add("fingerprint", manifest.tokenizer.fingerprint)
                                    .str();
  const std::string data = JsonLine()
                               .add("fingerprint", manifest.data.fingerprint)
                               .add("template_day", manifest.data.template_day)
                               .str();
  return JsonLine()
      .raw("teacher", json_of(manifest.teacher))
      .raw("tokenizer", tokenizer)
      .raw("data", data)
      .raw("payload", json_of(manifest.payload))
      .raw("packs", packs_json(manifest))
      .str();
}

CacheManifest manifest_of(const nlohmann::json& json) {
  CacheManifest manifest;
  const auto& teacher = json.at("teacher");
  manifest.teacher = {.model = teacher.at("model"),
                      .dtype = teacher.at("dtype"),
                      .hidden_size = teacher.at("hidden_size"),
                      .vocab_rows = teacher.at("vocab_rows"),
                      .tokenizer_size = teacher.at("tokenizer_size"),
                      .weights = teacher.at("weights"),
                      .files = teacher.at("files"),
                      .head_checksum = std::stoull(teacher.at("head_checksum").get<std::string>())};
  manifest.tokenizer = {.ids = json.at("tokenizer").at("ids"),
                        .fingerprint = json.at("tokenizer").at("fingerprint")};
  manifest.data = {.fingerprint = json.at("data").at("fingerprint"),
                   .template_day = json.at("data").at("template_day")};

  const auto& payload = json.at("payload");
  manifest.payload.kind = parse_enum<roles::PayloadKind>(payload.at("kind").get<std::string>());
  manifest.payload.top_k = payload.at("top_k");
  manifest.payload.temperature = payload.at("temperature");
  manifest.payload.bfloat16 = payload.at("bfloat16");
  manifest.payload.common_vocab = payload.at("common_vocab");
  manifest.payload.num_samples = payload.at("num_samples");
  manifest.payload.replacement = payload.at("replacement");
  manifest.payload.seed = std::stoull(payload.at("seed").get<std::string>());

  const auto& packs = json.at("packs");
  manifest.packs = packs.at("formed_by").get<std::string>();
  manifest.sequences = packs.at("sequences");
  manifest.rows = packs.at("target_tokens");
  manifest.bytes = packs.at("bytes");
  for (const auto& file : packs.at("files")) {
    manifest.files.push_back({.name = file.at("name"), .bytes = file.at("bytes")});
    const PayloadFile& last = manifest.files.back();
    if (last.bytes < 0 || last.name.find('/') != std::string::npos)
      throw std::invalid_argument("a file '" + last.name + "'");
  }

  // Memory is taken for these sizes, so a damaged manifest must not name just any.
  const auto& t = manifest.teacher;
  if (t.hidden_size < 1 || t.vocab_rows < 1 || t.hidden_size > (int64_t{1} << 24) ||
      t.vocab_rows > (int64_t{1} << 30) || manifest.payload.top_k < 1 ||
      manifest.payload.num_samples < 1 || manifest.payload.num_samples > (1 << 20) ||
      manifest.payload.common_vocab < 0 || manifest.payload.common_vocab > t.vocab_rows)
    throw std::invalid_argument("sizes that no model has");
  manifest.scalar_type();
  return manifest;
}

CacheManifest parse_manifest(const fs::path& path) {
  const std::string text = read_file(path);
  const auto refuse = [&](const std::string& why) -> CacheManifest {
    throw Error(ErrorCode::kCorrupt, path.string() + " is not the manifest of a cache: " + why +
                                         "; restore it, or write the cache anew");
  };
  if (json_nesting(text) > kMaxJsonNesting) return refuse("too deeply nested");
  try {
    return manifest_of(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    return refuse(error.what());
  } catch (const std::logic_error& error) {  // numbers and sizes
    return refuse(error.what());
  } catch (const Error& error) {
    return refuse(error.message());
  }
}

// Complains about the cache with what it holds and what the recipe asks for.
class Complaint {
 public:
  explicit Complaint(std::string folder) : folder_(std::move(folder)) {}

  template <class Value>
  void compare(const std::string& what, const Value& held, const Value& asked) const {
    if (held == asked) return;
    std::ostringstream text;
    text << what << " is " << held << " in the cache and " << asked << " in the recipe";
    refuse(text.str());
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kMismatch, "the cache '" + folder_ + "' does not fit: " + what +
                                          "; change the recipe, or write another cache with "
                                          "`retort cache`");
  }

 private:
  const std::string folder_;
};

}  // namespace

at::ScalarType CacheManifest::scalar_type() const { return models::parse_dtype(teacher.dtype); }

int64_t CacheManifest::head_bytes() const {
  if (payload.kind != roles::PayloadKind::kHiddenStates) return 0;
  return teacher.vocab_rows * teacher.hidden_size *
         static_cast<int64_t>(c10::elementSize(scalar_type()));
}

int64_t payload_cache_bytes(const CacheManifest& manifest, int64_t sequences, int64_t rows) {
  const auto& spec = manifest.payload;
  const int64_t vocab = spec.common_vocab > 0 ? spec.common_vocab : manifest.teacher.vocab_rows;
  return sequences * kPayloadRecordBytes +
         rows * roles::payload_bytes_per_row(
                    spec, manifest.teacher.hidden_size, vocab,
                    static_cast<int64_t>(c10::elementSize(manifest.scalar_type())));
}

std::string describe_packs(const data::BatchOptions& options) {
  std::ostringstream text;
  text << "seed " << options.seed << ", shuffle " << options.shuffle << ", packing "
       << options.packing << ", max_length " << options.max_length << ", rows "
       << options.rows_per_micro_batch << ", tokens " << options.tokens_per_micro_batch
       << ", micro-batches " << options.micro_batches << ", rampup " << options.rampup_steps
       << ", dp " << options.dp_size;
  return text.str();
}

CacheManifest read_manifest(const fs::path& folder) {
  // The manifest is written last: a folder with only the other file holds a cache that is not
  // complete.
  if (fs::is_regular_file(folder / kManifestName)) return parse_manifest(folder / kManifestName);
  if (fs::is_regular_file(folder / kBegunName))
    throw Error(ErrorCode::kInvalidArgument,
                "the cache '" + folder.string() +
                    "' is not complete; run the same `retort cache` again, which goes on with it");
  throw Error(ErrorCode::kInvalidArgument,
              "'" + folder.string() +
                  "' is no cache of a teacher's payloads (no manifest.json); write one with "
                  "`retort cache RECIPE --output " +
                  folder.string() + "`");
}

std::optional<CacheManifest> read_begun(const fs::path& folder) {
  if (!fs::is_regular_file(folder / kBegunName)) return std::nullopt;
  return parse_manifest(folder / kBegunName);
}

void write_begun(const fs::path& folder, const CacheManifest& manifest) {
  write_file_atomically(folder / kBegunName, json_of(manifest) + "\n");
}

void write_manifest(const fs::path& folder, const CacheManifest& manifest) {
  write_file_atomically(folder / kManifestName, json_of(manifest) + "\n");
}

roles::PayloadSpec check_cached_payload(const CacheManifest& manifest, roles::PayloadSpec asked,
                                        const CacheReader& reader) {
  const Complaint complaint(reader.folder);
  const auto& held = manifest.payload;

  // Ids must mean the same to the student and to the cache.
  const auto& ids = manifest.tokenizer.ids;
  const int64_t known = std::min(reader.tokenizer.vocab_size(), manifest.teacher.tokenizer_size);
  complaint.compare("the number of ids that tokenizer and teacher both know", ids, known);
  if (reader.tokenizer.vocabulary_fingerprint(ids) != manifest.tokenizer.fingerprint)
    complaint.refuse("the tokenizer of the student (" + reader.tokenizer.folder().string() +
                     ") differs from that of the cache in the ids that both know");

  // The numbers must be those that the recipe asks for.
  complaint.compare("distill.payload", enum_name(held.kind), enum_name(asked.kind));
  if (asked.kind == roles::PayloadKind::kTopK) {
    complaint.compare("distill.loss_top_k", held.top_k, asked.top_k);
    complaint.compare("distill.payload_dtype bfloat16", held.bfloat16, asked.bfloat16);
  }
  if (asked.kind == roles::PayloadKind::kSampled) {
    complaint.compare("distill.num_samples", held.num_samples, asked.num_samples);
    complaint.compare("distill.replacement", held.replacement, asked.replacement);
    asked.seed = held.seed;  // they have been drawn
  }
  if (asked.kind != roles::PayloadKind::kHiddenStates)
    complaint.compare("distill.temperature", held.temperature, asked.temperature);

  // Hidden states serve all ids; the other kinds are normalised over the common ones.
  const int64_t teacher_rows = manifest.teacher.vocab_rows;
  const int64_t common = std::min({known, reader.vocab_rows, teacher_rows});
  const bool all_rows = common == reader.vocab_rows && common == teacher_rows;
  asked.common_vocab = all_rows ? 0 : common;
  const int64_t held_ids = held.common_vocab > 0 ? held.common_vocab : teacher_rows;
  if (asked.kind != roles::PayloadKind::kHiddenStates)
    complaint.compare("the number of common ids", held_ids, common);
  return asked;
}

void check_cached_teacher(const CacheManifest& manifest, const std::string& folder) {
  const auto& teacher = manifest.teacher;
  if (!fs::is_directory(teacher.model) || roles::stamp_of_model(teacher.model) == teacher.files)
    return;
  // Files that were touched may hold the same weights: only now are all of them read.
  const std::string now = models::weights_fingerprint(teacher.model, manifest.scalar_type());
  if (now != teacher.weights)
    Complaint(folder).refuse("the teacher " + teacher.model +
                             " has other weights than when the cache was written (" +
                             teacher.weights.substr(0, 16) + ", now " + now.substr(0, 16) + ")");
}

}  // namespace retort::recipes
