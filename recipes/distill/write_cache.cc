#include "recipes/distill/write_cache.h"

#include <ATen/core/Tensor.h>

#include <deque>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/today.h"
#include "models/config/config.h"
#include "parallel/vote.h"
#include "recipes/data/batches.h"
#include "recipes/data/dataset.h"
#include "recipes/distill/cache_manifest.h"
#include "recipes/distill/payload_cache.h"
#include "recipes/run/inputs/chat.h"
#include "recipes/run/loop/agreement.h"
#include "recipes/run/rank/agent_options.h"
#include "recipes/run/rank/request_id.h"
#include "recipes/run/rank/role_connections.h"
#include "recipes/run/rank/student_options.h"
#include "roles/teacher/requests.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void refuse_recipe(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, "retort cache: " + message);
}

// A cache that was begun in a folder goes on as it was begun.
void check_same_cache(const fs::path& folder, const CacheManifest& begun,
                      const CacheManifest& now) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kMismatch, "the cache in " + folder.string() + " was begun with " +
                                          what + "; restore it, or choose another --output");
  };
  auto teacher = begun.teacher;
  teacher.files = now.teacher.files;  // files that were touched may hold the same weights
  teacher.model = now.teacher.model;
  if (teacher != now.teacher) refuse("another teacher (its weights or its dtype)");
  if (begun.tokenizer != now.tokenizer) refuse("another tokenizer of student or teacher");
  if (begun.data != now.data)
    refuse("other rows, or other options of `data` that shape them (template day " +
           begun.data.template_day + ", now " + now.data.template_day + ")");
  const auto& was = begun.payload;
  const auto& is = now.payload;
  if (was.kind != is.kind || was.top_k != is.top_k || was.temperature != is.temperature ||
      was.bfloat16 != is.bfloat16 || was.common_vocab != is.common_vocab ||
      was.num_samples != is.num_samples || was.replacement != is.replacement || was.seed != is.seed)
    refuse(
        "another payload (kind, loss_top_k, temperature, payload_dtype, common ids, or draws and "
        "their seed)");
}

// Chat templates print the day on which the cache was begun.
std::string cache_day(const RankContext& context, parallel::World& world) {
  if (context.recipe.data.template_date) return *context.recipe.data.template_date;
  const auto begun = read_begun(context.run_folder);
  return world.all().broadcast(begun ? begun->data.template_day : today(), 0);
}

// Writes one rank's part of a cache.
class CacheRun {
 public:
  CacheRun(RunContext& run, std::string day)
      : run_(run),
        folder_(run.rank.run_folder),
        rows_(std::make_shared<data::Dataset>(run.recipe().data.train, run.recipe().data,
                                              run.tokenizer, run.chat, run.cache())),
        teacher_(connect()) {
    describe(std::move(day));
  }

  // Returns true when everything is written, false when it was asked to stop.
  bool run();

 private:
  struct Asked {
    std::vector<WantedSequence> sequences;  // that are not known yet
    roles::PendingPayload pending;
  };

  std::unique_ptr<roles::TeacherClient> connect() {
    const DistillOptions& distill = *run_.recipe().distill;
    return connect_frozen_role(run_, distill.teachers.front().role,
                               distill.payload_spec(run_.recipe().seed),
                               {.weights_fingerprint = true, .same_rows = &run_.world.dp()});
  }
  void describe(std::string day);
  void begin();
  void ask(int64_t step, const data::BatchStream::Step& batches);
  void keep_oldest();
  void write_head();
  void finish();

  RunContext& run_;
  const fs::path folder_;
  std::shared_ptr<data::Dataset> rows_;
  std::unique_ptr<roles::TeacherClient> teacher_;
  CacheManifest manifest_;
  std::set<std::string> known_;
  std::unique_ptr<PayloadWriter> writer_;
  std::deque<std::deque<Asked>> in_flight_;  // of each step
};

void CacheRun::describe(std::string day) {
  const roles::TeacherInfo& info = teacher_->info();
  const std::string& role = run_.recipe().distill->teachers.front().role;
  manifest_.teacher = {
      .model = fs::absolute(run_.recipe().roles.at(role).model).lexically_normal().string(),
      .dtype = info.dtype,
      .hidden_size = info.hidden_size,
      .vocab_rows = info.vocab_rows,
      .tokenizer_size = info.tokenizer_size,
      .weights = info.weights_fingerprint,
      .files = info.files};
  const at::Tensor& head = teacher_->head_weight();
  if (head.defined())
    manifest_.teacher.head_checksum =
        checksum64({static_cast<const std::byte*>(head.const_data_ptr()), head.nbytes()});

  const int64_t ids = std::min(run_.tokenizer.vocab_size(), info.tokenizer_size);
  manifest_.tokenizer = {.ids = ids, .fingerprint = run_.tokenizer.vocabulary_fingerprint(ids)};
  manifest_.data = {.fingerprint = rows_->fingerprint(), .template_day = std::move(day)};
  manifest_.payload = teacher_->spec();
  manifest_.packs = describe_packs(run_.batches());
}

// When this returns, the files of earlier calls hold whole records, and this rank knows all of
// them.
void CacheRun::begin() {
  parallel::World& world = run_.world;
  check_same_rows(world, manifest_.data.fingerprint);
  // The vote between the two halves lets nobody read the files before every rank has cut its share
  // of them.
  parallel::run_on_all(world.all(), [&] {
    const auto begun = read_begun(folder_);
    if (begun) check_same_cache(folder_, *begun, manifest_);
    cut_torn_records(folder_, world.rank(), world.all().size());
  });
  parallel::run_on_all(world.all(), [&] {
    if (world.rank() == 0 && !read_begun(folder_)) {
      write_head();
      write_begun(folder_, manifest_);
    }
    const PayloadCache written(folder_, payload_files(folder_));
    known_ = written.keys();
    writer_ = std::make_unique<PayloadWriter>(folder_, world.rank());
  });
}

void CacheRun::write_head() {
  const at::Tensor& head = teacher_->head_weight();
  if (!head.defined()) return;
  AtomicFile file(folder_ / "head.bin");
  file.write(std::span(static_cast<const std::byte*>(head.const_data_ptr()), head.nbytes()));
  file.commit();
}

void CacheRun::ask(int64_t step, const data::BatchStream::Step& batches) {
  in_flight_.emplace_back();
  const parallel::World& world = run_.world;
  for (size_t i = 0; i < batches.micro_batches.size(); ++i) {
    const data::MicroBatch& batch = batches.micro_batches[i];
    const uint64_t id = request_id(step, i, batches.micro_batches.size(), world.coordinate().dp,
                                   world.options().layout.dp);
    if (batch.num_targets() == 0) continue;

    // A pack of which anything is missing is asked for as a whole, so that its rows have the same
    // bits whatever was there before.
    Asked asked;
    const roles::ForwardRequest request =
        roles::pack_request(batch.tokens, batch.predict_positions);
    for (WantedSequence& sequence :
         wanted_sequences(request.input_ids, request.cu_seqlens, request.positions))
      if (known_.insert(sequence.key).second) asked.sequences.push_back(std::move(sequence));
    if (asked.sequences.empty()) continue;
    asked.pending = teacher_->send(id, step, batch.tokens, batch.predict_positions);
    in_flight_.back().push_back(std::move(asked));
  }
}

void CacheRun::keep_oldest() {
  for (Asked& asked : in_flight_.front()) {
    roles::Payload payload = teacher_->receive(std::move(asked.pending));
    for (at::Tensor* tensor : payload.row_tensors())
      if (tensor->defined()) *tensor = tensor->contiguous();
    for (const WantedSequence& sequence : asked.sequences)
      writer_->add(sequence, payload);
  }
  in_flight_.pop_front();
}

bool CacheRun::run() {
  begin();
  data::BatchStream stream(rows_, run_.batches());
  const int64_t steps = data::BatchStream(rows_, run_.batches()).steps_per_epoch();
  const auto prefetch = static_cast<size_t>(run_.recipe().distill->prefetch);
  const auto report = [&](int64_t step) {
    run_.rank.report("training", step, "of " + std::to_string(steps) + " batches kept");
  };

  // All ranks go through the same steps, and stop at the same one: each step has a vote.
  parallel::Group& all = run_.world.all();
  for (int64_t step = 1; step <= steps; ++step) {
    if (all.all_reduce(int64_t{run_.rank.stop_requested()}) > 0) return false;
    parallel::run_on_all(all, [&] {
      ask(step, stream.next());
      // The teacher is asked ahead, so that it computes while this rank writes.
      if (in_flight_.size() > prefetch) keep_oldest();
    });
    report(step);
  }
  parallel::run_on_all(all, [&] {
    while (!in_flight_.empty())
      keep_oldest();
    // All payloads must be on the disk before there is a manifest.
    writer_->sync();
  });
  finish();
  return true;
}

// The manifest comes last: a cache that has one is complete.
void CacheRun::finish() {
  parallel::run_on_all(run_.world.all(), [&] {
    if (run_.world.rank() != 0) return;
    manifest_.files = payload_files(folder_);
    const PayloadCache written(folder_, manifest_.files);
    manifest_.sequences = written.num_sequences();
    manifest_.rows = written.num_rows();
    manifest_.bytes = manifest_.head_bytes();
    for (const PayloadFile& file : manifest_.files)
      manifest_.bytes += file.bytes;
    write_manifest(folder_, manifest_);
  });
}

}  // namespace

void check_cache_recipe(const Recipe& recipe) {
  // What the student has a say in is new in each step, so an answer could be used once at most.
  const DistillOptions& distill = *recipe.distill;
  if (distill.lmbda > 0)
    refuse_recipe(
        "distill.lmbda is above 0: what the student draws is new in each step, so that nothing "
        "said of it can be kept; write lmbda: 0");
  if (distill.support != roles::Support::kTeacher)
    refuse_recipe("distill.support: " + std::string(enum_name(distill.support)) +
                  " asks for ids that the student names in each step, so that nothing said of them "
                  "can be kept; write support: teacher");

  if (distill.crosses_tokenizers())
    refuse_recipe("distill.cross_tokenizer: " + std::string(enum_name(distill.cross_tokenizer)) +
                  " asks a teacher for tokens of its own, which no cache holds; write "
                  "cross_tokenizer: none");

  // A cache is one teacher's answers to every row, and names the weights that gave them.
  if (distill.teachers.size() != 1)
    refuse_recipe(
        "distill.teachers: a cache holds the payloads of one teacher; write a recipe for each "
        "(teachers: [{role: NAME}])");
  const TeacherOptions& teacher = distill.teachers.front();
  if (!teacher.cache.empty())
    refuse_recipe("distill.teachers[0].cache: is one already; name a role");
  if (!teacher.when.empty())
    refuse_recipe(
        "distill.teachers[0].when: every row is written; leave the others out of data.train, and "
        "write `when` where the cache is used");
  if (recipe.roles.at(teacher.role).external)
    refuse_recipe("roles." + teacher.role +
                  ".external: an engine does not say which weights it serves, so that nothing is "
                  "kept for other runs; use a teacher of ours (`model`)");

  // Sequences are found by their tokens, which have to be the same in every epoch.
  if (recipe.data.packing_strategy == data::PackingStrategy::kWrapped)
    refuse_recipe(
        "data.packing_strategy: wrapped cuts rows elsewhere in each epoch, so that a second one "
        "would find nothing; write whole");
}

void write_payload_cache(const RankContext& context) {
  parallel::World world(student_world_options(context));
  context.report("loading", 0, context.recipe.distill->teachers.front().role);
  rpc::Agent agent(agent_options(context, world.device()));
  rpc::PeerLinks links(agent, {.find = [&context](const std::string& peer, Deadline deadline) {
                         return find_peer(context, peer, deadline);
                       }});
  const std::string day = cache_day(context, world);
  const std::string& model = context.role_options().model;
  RunContext run{.rank = context,
                 .world = world,
                 .tokenizer = models::Tokenizer::load(model),
                 .chat = load_chat(context.recipe, day),
                 .vocab_rows = models::read_model_config(model).vocab_size,
                 .agent = agent,
                 .links = links};

  // The client of the teacher ends before the agent that it calls through.
  bool complete = false;
  {
    // One rank alone may fail to reach the teacher; the vote ends the others too.
    const auto work =
        parallel::run_on_all(world.all(), [&] { return std::make_unique<CacheRun>(run, day); });
    complete = work->run();
  }
  agent.close();
  agent.join();
  if (complete)
    context.report("done", 0, "the cache is complete");
  else
    context.report(context.stop_requested() ? "interrupted" : "stopped", 0,
                   "the same command goes on with the cache");
}

}  // namespace retort::recipes
