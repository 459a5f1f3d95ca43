import logging
import warnings

# Detectron2 is older than these notices to its authors.
warnings.filterwarnings("ignore", message=".torch.jit.script. is deprecated", category=FutureWarning)
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
