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

std::vector<ByteGroup> groups_of_row(const data::Sample& sample,
                                     const std::vector<uint8_t>& is_target,
                                     const TwoTokenizers& both) {
  return byte_groups({sample.input_ids, is_target, both.student_bytes},
                     {sample.reading.input_ids, sample.reading.is_target, both.teacher_bytes},
                     sample.origin, /*student_is_cut=*/sample.truncated);
}

// A draw may be anything: tokens that the teacher has not read are no targets here, and one whose
// bytes the teacher's tokenizer changes has no group.
std::vector<ByteGroup> groups_of(const data::Sample& sample, const TwoTokenizers& both,
                                 int64_t& num_unaligned) {
  const data::Reading& reading = sample.reading;
  if (reading.drawn_tokens < 0) return groups_of_row(sample, sample.is_target, both);
  std::vector<uint8_t> is_read = sample.is_target;
  const int64_t first = data::last_turn_begin(is_read) + reading.drawn_tokens;
  std::fill(is_read.begin() + first, is_read.end(), uint8_t{0});
  const auto has_targets = [](const std::vector<uint8_t>& marks) {
    return std::ranges::find(marks, uint8_t{1}) != marks.end();
  };
  if (!has_targets(is_read) || !has_targets(reading.is_target)) return {};
  try {
    return groups_of_row(sample, is_read, both);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    ++num_unaligned;
    return {};
  }
}

// The turn of a row of the data that the student says anew.
struct LastTurn {
  int64_t teacher_begin = 0;                     // where the teacher reads what was said there
  int32_t student_sign = -1, teacher_sign = -1;  // by which both end it; -1: none is known
};

// Where the run of targets begins that has so many others before it; the last one, if it has fewer.
int64_t run_begin(const std::vector<uint8_t>& is_target, int64_t before) {
  int64_t begin = 0;
  for (size_t i = 0; i < is_target.size() && before >= 0; ++i)
    if (is_target[i] && (i == 0 || !is_target[i - 1])) {
      begin = static_cast<int64_t>(i);
      --before;
    }
  return begin;
}

int64_t num_runs(const std::vector<uint8_t>& is_target) {
  int64_t runs = 0;
  for (size_t i = 0; i < is_target.size(); ++i)
    runs += is_target[i] && (i == 0 || !is_target[i - 1]) ? 1 : 0;
  return runs;
}

// What the row's own answer says about it: behind what the teacher's template puts before an
// answer, and by which signs both end one. A row that was cut may have lost turns that the teacher
// reads.
LastTurn last_turn(const data::Sample& row, const TwoTokenizers& both) {
  const data::Reading& reading = row.reading;
  LastTurn turn{.teacher_begin = run_begin(reading.is_target, num_runs(row.is_target) - 1),
                .teacher_sign = both.teacher.eos_id()};
  const int64_t student_begin = data::last_turn_begin(row.is_target);
  bool is_first = true;
  for (const ByteGroup& group : groups_of_row(row, row.is_target, both)) {
    if (group.student_begin < student_begin) continue;
    if (is_first) turn.teacher_begin = group.teacher_begin;
    is_first = false;
    if (!group.ends_turn) continue;
    turn.student_sign = row.input_ids[static_cast<size_t>(group.student_begin)];
    turn.teacher_sign = reading.input_ids[static_cast<size_t>(group.teacher_begin)];
  }
  return turn;
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
    const std::vector<ByteGroup> groups = groups_of(sample, both, aligned.num_unaligned);

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
  const auto is_special = [&](int32_t id) { return both.student_bytes.is_special(id); };
  const LastTurn turn = last_turn(row, both);
  // What is said ends with the first special token. It ends the turn, if it is a sign for that and
  // nothing but such tokens follow.
  const auto sign = std::ranges::find_if(completion, is_special);
  const auto said = static_cast<size_t>(sign - completion.begin());
  const bool ends = sign != completion.end() &&
                    (*sign == turn.student_sign || *sign == both.student.eos_id()) &&
                    std::all_of(sign, completion.end(), is_special);
  const std::vector<int32_t> ids =
      both.teacher.encode(text_of(completion.first(said), both.student_bytes), false);

  // The teacher's own tokens stand before the row's last turn, and its sign behind it.
  const auto& read = row.reading.input_ids;
  data::Reading drawn{
      .input_ids = std::vector<int32_t>(read.begin(), read.begin() + turn.teacher_begin),
      .drawn_tokens = static_cast<int64_t>(ends ? completion.size() : said)};
  drawn.is_target.assign(drawn.input_ids.size(), 0);
  drawn.input_ids.insert(drawn.input_ids.end(), ids.begin(), ids.end());
  if (ends && turn.teacher_sign >= 0) drawn.input_ids.push_back(turn.teacher_sign);
  drawn.is_target.resize(drawn.input_ids.size(), 1);
  return drawn;
}

}  // namespace retort::recipes
