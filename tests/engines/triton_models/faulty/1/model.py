import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        error = triton.TritonError("no score today")
        return [triton.InferenceResponse(error=error) for _ in requests]
