// A student and a teacher whose tokenizers differ: what each reads of the same rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/token_bytes.h"
#include "models/text/tokenizer.h"
#include "recipes/data/batches.h"
#include "recipes/data/dataset.h"
#include "recipes/document/recipe.h"
#include "recipes/losses/linear_uld.h"
#include "recipes/losses/token_groups.h"

namespace retort::recipes {

// Immutable. Threads: any.
struct TwoTokenizers {
  TwoTokenizers(models::Tokenizer of_student, models::Tokenizer of_teacher)
      : student(std::move(of_student)),
        teacher(std::move(of_teacher)),
        student_bytes(student),
        teacher_bytes(teacher) {}

  models::Tokenizer student, teacher;
  models::TokenBytes student_bytes, teacher_bytes;
};

// The folder of a recipe's one teacher, by whose tokenizer it is asked.
const std::string& other_tokenizer_folder(const Recipe& recipe);
// As above; kInvalidArgument for a tokenizer whose tokens are not told apart by bytes.
std::shared_ptr<const TwoTokenizers> load_two_tokenizers(const Recipe& recipe);

// Who reads the rows beside the student: the teacher's tokenizer with its own template or the
// student's (distill.teacher_template). `chat`: the student's, whose variables and day hold for
// both. Null where the recipe crosses no tokenizers.
std::shared_ptr<const data::RowReader> teacher_reader(const Recipe& recipe,
                                                      const models::ChatTemplate& chat);

// The loss of `uld` or `gold` as a recipe has it; the tokens that both know by name among it, whose
// weights are, unless the recipe has some, their share of the teacher's tokens and what is left.
losses::UldOptions uld_options(const DistillOptions& options, const TwoTokenizers& both);

// A micro-batch on both sides, and which rows stand for the same bytes. Rows are those of the
// predicted positions, over all samples.
struct AlignedBatch {
  data::MicroBatch teacher;  // its readings, in the order of the samples
  // Each weighs 1 / (groups of its sample), so that a sample's distance is a mean.
  std::vector<losses::TokenGroup> groups;
  // The signs by which both sides end a turn, which are no text.
  std::vector<losses::TokenGroup> ends;
  int64_t num_unaligned = 0;  // draws of which the teacher's tokenizer reads other bytes
};
// kInvalidArgument naming the row of the data whose two readings are of other bytes. A draw is
// never refused: what cannot be compared is in no group.
AlignedBatch align(const data::MicroBatch& batch, const TwoTokenizers& both);

// What the teacher reads of a row whose last turn the student has drawn: its own tokens up to
// where it reads that turn, those of the completion's text, and if the student ended its turn, its
// own sign for that. Nothing is read behind a special token within a completion, or behind bytes
// that are no text, as it was cut within a character.
data::Reading reading_of_draw(const data::Sample& row, std::span<const int32_t> completion,
                              const TwoTokenizers& both);

}  // namespace retort::recipes
