# The JAX binding of Transformer Engine from its source package: C++ alone, no CUDA code, so no nvcc. gpu/build.py starts it:
#   make -f binding.mk SDIST=unpacked-source SITE=site-packages PYTHON=python3.12      (writes into the current folder)
# SITE holds jaxlib, pybind11, nvidia-cudnn-frontend (SITE/include) and the nvidia wheels with headers and libnccl.so.2.
MODULE := transformer_engine_jax$(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
PYINC := $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
COMMON := $(SDIST)/common_headers
OBJS := $(notdir $(patsubst %.cpp,%.o,$(wildcard $(SDIST)/csrc/extensions/*.cpp)))
INCLUDES := $(SITE)/nvidia/cu13/include $(SITE)/nvidia/cu13/include/cccl $(SITE)/nvidia/cudnn/include \
  $(SITE)/nvidia/nccl/include $(SITE)/include $(COMMON) $(COMMON)/common $(COMMON)/common/include \
  $(SDIST)/csrc $(SITE)/jaxlib/include $(PYINC) $(SITE)/pybind11/include
# Sources are named by their path in the package, not by where this machine has them: the same bytes from any work folder.
NAMES := $(addsuffix /=,$(addprefix -ffile-prefix-map=,$(SDIST) $(SITE)))
CXXFLAGS := -std=c++17 -O2 -g0 -fPIC -fvisibility=hidden -w -DNVTE_WITH_NCCL_EP $(NAMES) $(addprefix -I,$(INCLUDES))

$(MODULE): $(OBJS)
	$(CXX) -shared -o $@ $^ $(SITE)/nvidia/nccl/lib/libnccl.so.2 -Wl,--strip-all

%.o: $(SDIST)/csrc/extensions/%.cpp
	$(CXX) $(CXXFLAGS) -c $< -o $@
