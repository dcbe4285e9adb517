#include "models/text/text_template.h"

#include <utility>

#include "models/text/detail/rust_call.h"

namespace retort::models {
using detail::borrow;
using detail::call_rust;

struct TextTemplate::Impl {
  RtTextTemplate* handle = nullptr;
  std::string origin;

  ~Impl() { rt_text_template_free(handle); }
};

TextTemplate::TextTemplate(const std::string& source, std::string origin) {
  auto impl = std::make_shared<Impl>();
  impl->origin = std::move(origin);
  call_rust(impl->origin, rt_text_template_open, borrow(source), &impl->handle);
  impl_ = std::move(impl);
}

std::string TextTemplate::render(std::string_view variables_json) const {
  detail::RustString text;
  call_rust(impl_->origin, rt_text_template_render, impl_->handle, borrow(variables_json),
            text.out());
  return text.str();
}

}  // namespace retort::models
