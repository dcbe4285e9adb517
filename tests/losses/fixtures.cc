#include "tests/losses/fixtures.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "base/random.h"
#include "tests/support/source_folder.h"

namespace retort::losses {
namespace {

at::Tensor teacher_log_probs(const Problem& problem, double temperature) {
  at::Tensor logits =
      at::mm(problem.teacher_hidden.to(at::kDouble), problem.teacher_weight.to(at::kDouble).t());
  if (problem.teacher_bias.defined()) logits = logits + problem.teacher_bias.to(at::kDouble);
  const int64_t common = problem.common > 0 ? problem.common : problem.weight.size(0);
  return at::log_softmax(logits.narrow(1, 0, common) / temperature, -1);
}

at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().clone().requires_grad_() : at::Tensor();
}

std::map<std::string, std::string> pairs_of(std::istringstream& line) {
  std::map<std::string, std::string> pairs;
  for (std::string word; line >> word;)
    pairs[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  return pairs;
}

GoldenCase parse_case(std::istringstream& line) {
  GoldenCase c;
  line >> c.name;
  auto pairs = pairs_of(line);
  c.set = pairs.at("set");
  c.k = std::stoll(pairs.at("k"));
  c.options.type = parse_enum<DivergenceType>(pairs.at("loss"));
  c.options.tail = parse_enum<Tail>(pairs.at("tail"));
  c.options.beta = c.options.type == DivergenceType::kJsd ? std::stod(pairs.at("mix")) : 0.5;
  c.options.skew_lambda = c.options.type == DivergenceType::kJsd ? 0.1 : std::stod(pairs.at("mix"));
  c.options.temperature = std::stod(pairs.at("temperature"));
  c.options.kd_ratio = std::stod(pairs.at("kd_ratio"));
  c.options.scale_by_temperature_squared = pairs.at("squared") == "1";
  c.options.common_vocab = std::stoll(pairs.at("common"));
  c.loss_sum = std::stod(pairs.at("loss_sum"));
  c.loss32 = std::stod(pairs.at("loss32"));
  c.kd = std::stod(pairs.at("kd"));
  c.ce = std::stod(pairs.at("ce"));
  return c;
}

}  // namespace

Problem random_problem(const ProblemSizes& sizes, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto normal = [&](at::IntArrayRef shape, double scale) {
    return at::randn(shape, generator, at::kFloat) * scale;
  };
  Problem p;
  p.hidden = normal({sizes.rows, sizes.width}, 1);
  p.weight = normal({sizes.vocab, sizes.width}, 2 / std::sqrt(static_cast<double>(sizes.width)));
  p.teacher_hidden = normal({sizes.rows, sizes.teacher_width}, 1);
  p.teacher_weight = normal({sizes.teacher_vocab, sizes.teacher_width},
                            2.5 / std::sqrt(static_cast<double>(sizes.teacher_width)));
  p.targets = at::randint(sizes.vocab, {sizes.rows}, generator, at::kLong);
  if (sizes.bias) {
    p.bias = normal({sizes.vocab}, 0.5);
    p.teacher_bias = normal({sizes.teacher_vocab}, 0.5);
  }
  return p;
}

Problem self_problem(const ProblemSizes& sizes, uint64_t seed) {
  Problem p = random_problem(sizes, seed);
  p.teacher_hidden = p.hidden;
  p.teacher_weight = p.weight;
  p.teacher_bias = p.bias;
  return p;
}

TeacherHidden hidden_signal(const Problem& p) {
  return {p.teacher_hidden, p.teacher_weight, p.teacher_bias};
}

TeacherFull full_signal(const Problem& p, double temperature) {
  return {teacher_log_probs(p, temperature).to(at::kFloat)};
}

TeacherTopK top_k_signal(const Problem& p, double temperature, int64_t k) {
  const at::Tensor all = teacher_log_probs(p, temperature);
  const auto [logps, ids] = at::topk(all, k, -1);
  const at::Tensor rest =
      all.scatter(1, ids, -std::numeric_limits<double>::infinity()).logsumexp(-1);
  return {ids.to(at::kInt), logps.to(at::kFloat), rest.to(at::kFloat)};
}

TeacherSampled sampled_signal(const Problem& p, double temperature, int64_t count, bool replacement,
                              uint64_t seed) {
  const at::Tensor all = teacher_log_probs(p, temperature);
  const auto noise = [&](uint64_t draw) {
    at::Tensor values = at::empty_like(all);
    double* value = values.mutable_data_ptr<double>();
    for (int64_t i = 0; i < values.numel(); ++i)
      value[i] = random_gumbel(seed, draw, static_cast<uint64_t>(i));
    return values;
  };
  if (replacement) {
    std::vector<at::Tensor> drawn;
    for (int64_t i = 0; i < count; ++i)
      drawn.push_back((all + noise(static_cast<uint64_t>(i))).argmax(1));
    const at::Tensor ids = at::stack(drawn, 1);
    return {ids.to(at::kInt), all.gather(1, ids).to(at::kFloat), {}};
  }

  const int64_t n = std::min(count, all.size(1));
  const bool more = n < all.size(1);
  const auto [sums, ids] = at::topk(all + noise(0), more ? n + 1 : n, -1);
  const at::Tensor kappa =
      more ? sums.select(1, n).to(at::kFloat)
           : at::full({all.size(0)}, -std::numeric_limits<float>::infinity(), at::kFloat);
  const at::Tensor first = ids.narrow(1, 0, n);
  return {first.to(at::kInt), all.gather(1, first).to(at::kFloat), kappa};
}

Outcome distill(const Problem& p, const TeacherSignal& signal, const DivergenceOptions& options) {
  const at::Tensor h = leaf(p.hidden), w = leaf(p.weight), b = leaf(p.bias);
  Outcome outcome;
  outcome.result = linear_distill(h, w, b, p.targets, signal, options);
  outcome.loss = outcome.result.loss_sum.item<double>();
  outcome.result.loss_sum.backward();
  outcome.dh = h.grad();
  outcome.dw = w.grad();
  if (b.defined()) outcome.db = b.grad();
  return outcome;
}

Goldens read_goldens() {
  const std::string folder = (test::source_folder() / "tests/losses/").string();
  std::ifstream manifest(folder + "goldens.txt"), binary(folder + "goldens.bin", std::ios::binary);
  if (!manifest || !binary) throw std::runtime_error("no goldens in " + folder);

  Goldens goldens;
  std::map<std::string, at::Tensor> tensors;
  for (std::string text; std::getline(manifest, text);) {
    std::istringstream line(text);
    std::string kind, name;
    line >> kind;
    if (kind == "case") {
      goldens.cases.push_back(parse_case(line));
      continue;
    }
    int64_t offset = 0;
    line >> name >> offset;
    std::vector<int64_t> shape;
    for (int64_t dim; line >> dim;)
      shape.push_back(dim);
    at::Tensor tensor = at::empty(shape, at::kFloat);
    binary.seekg(offset * 4);
    if (!binary.read(static_cast<char*>(tensor.data_ptr()), tensor.numel() * 4))
      throw std::runtime_error("goldens.bin is too short");
    tensors[name] = tensor;
  }
  for (GoldenCase& c : goldens.cases) {
    c.dh = tensors.at(c.name + ".dh");
    c.dw = tensors.at(c.name + ".dw");
    if (tensors.count(c.name + ".db")) c.db = tensors.at(c.name + ".db");
    const auto of = [&](const char* key) {
      return tensors.count(c.set + key) ? tensors.at(c.set + key) : at::Tensor();
    };
    goldens.sets[c.set] = {of(".hidden"),
                           of(".weight"),
                           of(".bias"),
                           of(".teacher_hidden"),
                           of(".teacher_weight"),
                           of(".teacher_bias"),
                           tensors.at(c.set + ".targets").to(at::kLong),
                           c.options.common_vocab};
  }
  return goldens;
}

}  // namespace retort::losses
