#include "models/generation/cpu_kernels/products.h"

#include <algorithm>

#include "models/generation/cpu_kernels/vector_kernels.h"

namespace retort::models {
namespace {

constexpr int64_t kColumns = 4;            // of one unit of work
constexpr int64_t kGrainProducts = 65536;  // below this another thread does not pay

at::Tensor readable(const at::Tensor& tensor, bool half_too) {
  if (tensor.scalar_type() == at::kFloat || (half_too && tensor.scalar_type() == at::kBFloat16))
    return tensor.contiguous();
  return tensor.to(at::kFloat).contiguous();
}

void multiply_columns(const Product& product, const float* x, int64_t x_stride, int64_t rows,
                      int64_t begin, int64_t end) {
  const Matrix& m = *product.matrix;
  const float* bias = m.bias.defined() ? m.bias.const_data_ptr<float>() : nullptr;
  const VectorKernels& kernels = vector_kernels();
  if (m.weight.scalar_type() == at::kFloat) {
    kernels.product_float(x, x_stride, m.weight.const_data_ptr<float>(), m.in, bias, product.y,
                          product.stride, rows, begin, end, product.add);
  } else {
    kernels.product_bfloat16(x, x_stride, static_cast<const uint16_t*>(m.weight.const_data_ptr()),
                             m.in, bias, product.y, product.stride, rows, begin, end, product.add);
  }
}

int64_t units_of(const Matrix& matrix) { return (matrix.out + kColumns - 1) / kColumns; }

int64_t grain_of(int64_t rows, int64_t in) {
  return std::max<int64_t>(1, kGrainProducts / std::max<int64_t>(1, rows * in * kColumns));
}

}  // namespace

Matrix::Matrix(const at::Tensor& w, const at::Tensor& b)
    : weight(readable(w, true)),
      bias(b.defined() ? readable(b, false) : b),
      out(w.size(0)),
      in(w.size(1)) {}

void multiply(WorkerPool& pool, const float* x, int64_t x_stride, int64_t rows,
              std::initializer_list<Product> products) {
  // The columns of all products are numbered through, so that one parallel run covers them all.
  int64_t units = 0;
  int64_t in = 0;
  for (const Product& product : products) {
    units += units_of(*product.matrix);
    in = product.matrix->in;
  }
  pool.run(units, grain_of(rows, in), [&](int64_t begin, int64_t end, int) {
    // A chunk may begin in one product and end in another.
    int64_t first = 0;
    for (const Product& product : products) {
      const int64_t count = units_of(*product.matrix);
      const int64_t from = std::max(begin, first);
      const int64_t to = std::min(end, first + count);
      if (from < to) {
        multiply_columns(product, x, x_stride, rows, (from - first) * kColumns,
                         std::min((to - first) * kColumns, product.matrix->out));
      }
      first += count;
    }
  });
}

void multiply_gated(WorkerPool& pool, const float* x, int64_t x_stride, int64_t rows,
                    const Matrix& gate, const Matrix& up, Activation activation, float* y,
                    float* scratch, int64_t stride) {
  const VectorKernels& kernels = vector_kernels();
  const auto apply = activation == Activation::kSilu ? kernels.swiglu : kernels.geglu;
  pool.run(units_of(gate), grain_of(rows, 2 * gate.in), [&](int64_t begin, int64_t end, int) {
    constexpr int64_t kRows = 64;  // so that gate and up are still near when they are multiplied
    const int64_t from = begin * kColumns;
    const int64_t to = std::min(end * kColumns, gate.out);
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t count = std::min(kRows, rows - r);
      multiply_columns({&gate, y + r * stride, stride}, x + r * x_stride, x_stride, count, from,
                       to);
      multiply_columns({&up, scratch + r * stride, stride}, x + r * x_stride, x_stride, count, from,
                       to);
      for (int64_t i = r; i < r + count; ++i) {
        apply(y + i * stride + from, scratch + i * stride + from, to - from);
      }
    }
  });
}

}  // namespace retort::models
