#include "tests/recipes/checkpoints/checkpoint_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <set>

#include "base/error.h"
#include "base/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/safetensors/safetensors.h"
#include "recipes/run/checkpoints/checkpoint_store.h"

namespace retort::recipes::testing {
namespace {

using test::ChildProcess;

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

std::vector<std::string> arguments(const Ranks::Options& options, int64_t rank, uint16_t port) {
  const parallel::Layout& l = options.layout;
  return {std::to_string(rank),
          std::to_string(l.tp),
          std::to_string(l.pp),
          std::to_string(l.dp),
          std::to_string(l.virtual_pp),
          l.distributed_optimizer ? "1" : "0",
          std::to_string(port),
          options.source.string(),
          options.run_folder.string(),
          options.load.value_or(options.source).string(),
          options.load ? "1" : "0",
          options.async ? "1" : "0",
          std::to_string(options.save_total_limit),
          std::to_string(options.timeout.count())};
}

parallel::World::Options world_options(const std::vector<std::string>& args) {
  parallel::World::Options options;
  options.role = "student";
  options.rank = std::stoll(args.at(0));
  options.layout = {.tp = std::stoll(args.at(1)),
                    .pp = std::stoll(args.at(2)),
                    .dp = std::stoll(args.at(3)),
                    .virtual_pp = std::stoll(args.at(4)),
                    .distributed_optimizer = args.at(5) == "1",
                    .threads = 1};
  options.store_port = static_cast<uint16_t>(std::stoi(args.at(6)));
  options.store_prefix = "run/student/0/";
  options.timeout = std::chrono::milliseconds(std::stoll(args.at(13)));
  return options;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw Error(ErrorCode::kMismatch, "not true: " + what);
}

class Student {
 public:
  explicit Student(const std::vector<std::string>& args)
      : world_(world_options(args)),
        trainer_(load(args.at(9)), world_,
                 {.adamw = {.weight_decay = 0.1},
                  .schedule = {.type = parallel::LrSchedulerType::kConstant, .learning_rate = 0.01},
                  .max_grad_norm = 0}),
        store_(args.at(8), args.at(7),
               {.save_total_limit = std::stoll(args.at(12)), .async = args.at(11) == "1"}) {
    if (args.at(10) == "1") trainer_.load_state(fs::path(args.at(9)) / "state");
  }

  void run(const std::string& command) {
    if (command == "train") return train();
    if (command == "finish") return store_.finish(world_);
    if (command == "save") {
      LoopState state{.step = trainer_.step(), .layout = world_.options().layout};
      store_.save(trainer_, world_, state);
    } else if (command.starts_with("limit ")) {
      ::signal(SIGXFSZ, SIG_IGN);
      const int64_t bytes = std::stoll(command.substr(6));
      rlimit now{};
      ::getrlimit(RLIMIT_FSIZE, &now);
      now.rlim_cur = bytes < 0 ? now.rlim_max : static_cast<rlim_t>(bytes);
      ::setrlimit(RLIMIT_FSIZE, &now);
    } else if (command.starts_with("check ")) {
      check(command.substr(6));
    } else {
      require(false, "I know the command " + command);
    }
  }

 private:
  models::Decoder load(const fs::path& folder) {
    return models::load_decoder(folder,
                                models::parse_dtype(models::read_model_config(folder).torch_dtype),
                                models::Placement::of(world_));
  }

  // The loss is a scalar product, so that the gradient of every element is known.
  void train() {
    trainer_.begin_step();
    at::Tensor loss = at::zeros({});
    for (const parallel::NamedParameter& p : trainer_.decoder().parameters()) {
      const double phase = static_cast<double>(std::hash<std::string>()(p.name) % 1000) +
                           static_cast<double>(trainer_.step());
      const at::Tensor whole =
          at::arange(c10::multiply_integers(p.shard.shape), at::kDouble).mul(0.7).add(phase).sin();
      const at::Tensor slice =
          whole.view(p.shard.shape).narrow(p.shard.dim, p.shard.begin, p.value.size(p.shard.dim));
      loss = loss + (p.value.to(at::kFloat) * slice.to(at::kFloat)).sum();
    }
    trainer_.backward(loss, true);
    trainer_.finish_step(1.0);
  }

  void check(const fs::path& checkpoint) {
    const models::SafetensorsReader model(checkpoint),
        state(checkpoint / "state" / "optimizer.safetensors");
    for (const parallel::NamedParameter& p : trainer_.decoder().parameters()) {
      const at::Tensor slice =
          model.get(p.name).narrow(p.shard.dim, p.shard.begin, p.value.size(p.shard.dim));
      require(at::equal(slice, p.value.detach()), p.name + " is its slice of the checkpoint");
    }
    for (const parallel::TensorPiece& p : trainer_.state_part().pieces) {
      const at::Tensor slice =
          state.get(p.name).narrow(p.dim, p.offset, p.slice_shape.at(static_cast<size_t>(p.dim)));
      require(at::equal(slice.flatten().narrow(0, p.begin, p.values.numel()), p.values),
              p.name + " is its piece of the checkpoint");
    }
    require(state.metadata().at("step") == std::to_string(trainer_.step()),
            "the step is the checkpoint's");
  }

  parallel::World world_;
  roles::Trainer trainer_;
  CheckpointStore store_;
};

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) names.insert(fs::relative(entry.path(), folder).string());
  return names;
}

}  // namespace

int run_student() {
  try {
    Student student(test::spawned_args());
    test::say("ready");
    while (const auto command = test::hear()) {
      std::string answer = "ok";
      try {
        student.run(*command);
      } catch (const Error& e) {
        answer = "error " + std::string(to_string(e.code())) + " " + e.what();
        std::replace(answer.begin(), answer.end(), '\n', ' ');
      }
      test::say(answer);
    }
    return 0;
  } catch (const std::exception& e) {
    test::say(std::string("error ") + e.what());
    return 1;
  }
}

Ranks::Ranks(const Options& options) {
  fs::create_directories(options.run_folder);
  for (int64_t rank = 0; rank < options.layout.world_size(); ++rank)
    children_.push_back(ChildProcess::spawn({.role = "student",
                                             .args = arguments(options, rank, store_.port()),
                                             .env = {},
                                             .program = {}}));
  for (ChildProcess& child : children_)
    EXPECT_EQ(child.read_line(soon()), "ready");
}

std::vector<std::string> Ranks::ask(const std::string& command) {
  for (ChildProcess& child : children_)
    child.write_line(command);
  std::vector<std::string> answers;
  for (ChildProcess& child : children_)
    answers.push_back(child.read_line(soon()));
  return answers;
}

void Ranks::expect_ok(const std::string& command) {
  for (const std::string& answer : ask(command))
    EXPECT_EQ(answer, "ok") << command;
}

std::string Ranks::ask_one(size_t rank, const std::string& command) {
  children_.at(rank).write_line(command);
  return children_.at(rank).read_line(soon());
}

std::string difference(const fs::path& a, const fs::path& b) {
  std::string text;
  std::set<std::string> names = files_in(a);
  names.merge(files_in(b));
  for (const std::string& name : names) {
    if (name == "state/loop.json" || name == "state/COMPLETE") continue;
    if (!fs::exists(a / name) || !fs::exists(b / name))
      text += name + " is in one of them only\n";
    else if (read_file(a / name) != read_file(b / name))
      text += name + " differs\n";
  }
  return text;
}

}  // namespace retort::recipes::testing
