"""Django's backend for MySQL and MariaDB with fewer round trips."""
