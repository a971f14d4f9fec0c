"""What spark-submit starts: it takes a file, not the name of a package.

spark-submit --py-files pipeline.zip deploy/pipeline/submit.py archive
"""

import runpy

runpy.run_module("pipeline", run_name="__main__")
