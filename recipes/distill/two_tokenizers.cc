#include "recipes/distill/two_tokenizers.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "models/config/config.h"
#include "recipes/distill/byte_groups.h"
#include "recipes/distill/matched_tokens.h"

namespace retort::recipes {
namespace {

// Rows of a micro-batch by the positions of one sample's tokens: a target at position i > 0 has the
// next row, as make_micro_batch() lays them out.
class RowsOfSample {
 public:
  // `first`: the row of the sample's first target.
  RowsOfSample(const std::vector<uint8_t>& is_target, int64_t first) : rows_{first} {
    for (size_t i = 0; i < is_target.size(); ++i)
      rows_.push_back(rows_.back() + (i > 0 && is_target[i] ? 1 : 0));
  }
  // How many rows come before that of the token at `position`.
  int64_t before(int64_t position) const { return rows_.at(static_cast<size_t>(position)); }
  int64_t end() const { return rows_.back(); }

 private:
  std::vector<int64_t> rows_;
};

// Nothing predicts the first token of a sequence, so a group that has it on one side is no group.
bool is_predicted(const ByteGroup& group) {
  return group.student_begin > 0 && group.teacher_begin > 0;
}

losses::TokenGroup rows_of(const ByteGroup& group, const RowsOfSample& student,
                           const RowsOfSample& teacher) {
  return {.student_begin = student.before(group.student_begin),
          .student_end = student.before(group.student_end),
          .teacher_begin = teacher.before(group.teacher_begin),
          .teacher_end = teacher.before(group.teacher_end)};
}

// As many bytes as are text: a completion may end within a character.
std::string text_of(std::span<const int32_t> ids, const models::TokenBytes& bytes) {
  std::string text;
  for (const int32_t id : ids)
    text += bytes.of(id);
  text.resize(utf8_prefix(text));
  return text;
}

}  // namespace

const std::string& other_tokenizer_folder(const Recipe& recipe) {
  return recipe.roles.at(recipe.distill->teachers.at(0).role).model;
}

std::shared_ptr<const TwoTokenizers> load_two_tokenizers(const Recipe& recipe) {
  if (!recipe.distill || !recipe.distill->crosses_tokenizers()) return nullptr;
  return std::make_shared<const TwoTokenizers>(
      models::Tokenizer::load(recipe.student().model),
      models::Tokenizer::load(other_tokenizer_folder(recipe)));
}

std::shared_ptr<const data::RowReader> teacher_reader(const Recipe& recipe,
                                                      const models::ChatTemplate& chat) {
  if (!recipe.distill->crosses_tokenizers()) return nullptr;
  const std::string& folder = other_tokenizer_folder(recipe);
  const bool own = recipe.distill->teacher_template == TeacherTemplate::kOwn;
  const RoleOptions& role = recipe.roles.at(recipe.distill->teachers.at(0).role);
  // An engine refuses by itself what is too long for it.
  const int64_t context =
      role.external ? 0 : models::read_model_config(folder).max_position_embeddings;
  return std::make_shared<const data::RowReader>(
      data::RowReader{.tokenizer = models::Tokenizer::load(folder),
                      .chat = own ? models::ChatTemplate::load(folder).with(chat.settings()) : chat,
                      .max_length = context});
}

losses::UldOptions uld_options(const DistillOptions& options, const TwoTokenizers& both) {
  losses::UldOptions uld{.temperature = options.temperature, .normalize = options.uld_normalize};
  if (options.cross_tokenizer != CrossTokenizer::kGold) return uld;
  const MatchedTokens pairs =
      matched_tokens(both.student_bytes, both.teacher_bytes, both.student, both.teacher);
  const double share =
      static_cast<double>(pairs.teacher.size()) / static_cast<double>(both.teacher_bytes.size());
  uld.matched =
      losses::MatchedIds{.student = at::tensor(pairs.student, at::kLong),
                         .teacher = at::tensor(pairs.teacher, at::kLong),
                         .matched_weight = options.gold.matched_weight.value_or(share),
                         .unmatched_weight = options.gold.unmatched_weight.value_or(1 - share),
                         .beta = options.gold.beta};
  return uld;
}

AlignedBatch align(const data::MicroBatch& batch, const TwoTokenizers& both) {
  AlignedBatch aligned;
  std::vector<data::Sample> readings;
  int64_t student_row = 0, teacher_row = 0;
  for (const data::Sample& sample : batch.samples) {
    const data::Reading& reading = sample.reading;
    RETORT_CHECK(!reading.input_ids.empty()) << sample.origin << " was read by the student alone";
    // A draw that is no text at all is nothing to the teacher.
    std::vector<ByteGroup> groups;
    if (std::ranges::find(reading.is_target, uint8_t{1}) != reading.is_target.end())
      groups = byte_groups({sample.input_ids, sample.is_target, both.student_bytes},
                           {reading.input_ids, reading.is_target, both.teacher_bytes},
                           sample.origin, /*student_is_cut=*/sample.truncated);

    const RowsOfSample student(sample.is_target, student_row);
    const RowsOfSample teacher(reading.is_target, teacher_row);
    student_row = student.end();
    teacher_row = teacher.end();
    const size_t first = aligned.groups.size();
    for (const ByteGroup& group : groups)
      if (is_predicted(group))
        (group.ends_turn ? aligned.ends : aligned.groups)
            .push_back(rows_of(group, student, teacher));
    const auto count = static_cast<double>(aligned.groups.size() - first);
    for (size_t g = first; g < aligned.groups.size(); ++g)
      aligned.groups[g].weight = 1 / count;

    readings.push_back(
        {.input_ids = reading.input_ids, .is_target = reading.is_target, .origin = sample.origin});
  }
  aligned.teacher = data::make_micro_batch(std::move(readings));
  RETORT_CHECK(student_row == batch.num_targets() && teacher_row == aligned.teacher.num_targets());
  return aligned;
}

data::Reading reading_of_draw(const data::Sample& row, std::span<const int32_t> completion,
                              const TwoTokenizers& both) {
  // The completion's last tokens may be the sign that ends a turn.
  size_t said = completion.size();
  while (said > 0 && both.student_bytes.is_special(completion[said - 1]))
    --said;
  const std::vector<int32_t> ids =
      both.teacher.encode(text_of(completion.first(said), both.student_bytes), false);

  // The teacher's own tokens stand before the row's last turn, and its sign behind it.
  const auto& [read, is_target] = row.reading;
  const auto begin = data::last_turn_begin(is_target);
  data::Reading drawn;
  drawn.input_ids.assign(read.begin(), read.begin() + begin);
  drawn.is_target.assign(drawn.input_ids.size(), 0);
  drawn.input_ids.insert(drawn.input_ids.end(), ids.begin(), ids.end());
  if (said < completion.size()) {
    auto sign = read.begin() + begin;
    const auto is_sign = [&](int32_t id) { return both.teacher_bytes.is_special(id); };
    // The last one counts: what was said may name others.
    const auto last = std::find_if(read.rbegin(), std::make_reverse_iterator(sign), is_sign);
    if (last.base() != sign) drawn.input_ids.push_back(*last);
  }
  drawn.is_target.resize(drawn.input_ids.size(), 1);
  return drawn;
}

}  // namespace retort::recipes
