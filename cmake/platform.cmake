# Ends the build on systems without JAX or without the compiler's vectors, before anything is looked for.
set(jax_gnn_systems "jax-gnn-kernels is for Linux with glibc (x86-64, aarch64) and macOS on arm64")
if(CMAKE_HOST_WIN32)
  message(FATAL_ERROR "${jax_gnn_systems}, not for Windows: install it in WSL 2")
endif()
if(CMAKE_HOST_APPLE)
  if(NOT DEFINED JAX_GNN_PROCESSOR)  # which a test sets
    cmake_host_system_information(RESULT JAX_GNN_PROCESSOR QUERY OS_PLATFORM)
  endif()
  if(NOT JAX_GNN_PROCESSOR STREQUAL "arm64")
    message(FATAL_ERROR "${jax_gnn_systems}, not for macOS on ${JAX_GNN_PROCESSOR}, where JAX 0.10 has no wheels")
  endif()
else()
  # musl's getconf, where there is one, knows no such name.
  execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE status)
  if(status MATCHES "^[1-9]")
    message(FATAL_ERROR "${jax_gnn_systems}, not for musl, for which JAX has no wheels")
  endif()
endif()
